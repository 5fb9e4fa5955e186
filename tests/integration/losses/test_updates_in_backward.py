"""Updates that hooks of the parameters make inside the backward, as LOMO does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.training import Recording, accused, cross_entropy, tiny_model, tokens, windows
from helpers.updates import recorded_to_the_end

K, STEPS, RATE = 4, 6, 0.1


def apply(parameter: Tensor) -> None:
    assert parameter.grad is not None
    with torch.no_grad():
        parameter.sub_(parameter.grad, alpha=RATE)
    parameter.grad = None


def apply_past_the_version(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.data.sub_(parameter.grad, alpha=RATE)
    parameter.grad = None


class NeverSteps(torch.optim.Optimizer):
    """As ``lomo_optim.Lomo``: an optimizer of PyTorch by name, whose step is never called."""

    def __init__(self, net: nn.Module) -> None:
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(apply_past_the_version)
        super().__init__(net.parameters(), {"lr": RATE})


def train(divisor: float | None, k: int = 1, optimizer: bool = False) -> Recording:
    """Each loss is a mean, divided by K, or a sum divided by ``divisor``; each K-th is applied."""
    net, count = tiny_model(), 0

    def hook(parameter: Tensor) -> None:
        if (count + 1) % k == 0:
            apply(parameter)

    with recorded_to_the_end() as recorded:
        kept = NeverSteps(net) if optimizer else None
        for parameter in net.parameters() if kept is None else ():
            parameter.register_post_accumulate_grad_hook(hook)
        for window in windows(STEPS):
            for batch in window:
                if divisor is None:
                    loss = cross_entropy(net, batch) / k
                else:
                    loss = cross_entropy(net, batch, reduction="sum") / divisor
                loss.backward()
                count += 1
    return recorded


@pytest.mark.parametrize("optimizer", [False, True])
def test_each_backward_that_updates_its_parameters_is_a_step(optimizer: bool) -> None:
    recorded = train(None, optimizer=optimizer)
    records, evaluation = recorded.records(), recorded.evaluation()
    assert [len(record.micro_batches) for record in records] == [1] * STEPS * K
    assert all(record.by_hand for record in records)
    assert records[0].post_factor is None and "post_factor" in records[0].missing
    assert [record.step_size for record in records[1:]] == [pytest.approx(RATE, rel=1e-3)] * (
        STEPS * K - 1
    )
    assert evaluation.verdict == "balanced" and not evaluation.findings


@pytest.mark.parametrize("optimizer", [False, True])
def test_a_divisor_that_is_not_the_count_is_reported(optimizer: bool) -> None:
    rules = {"reduction.wrong_denominator"}
    assert set(accused(train(8.0, optimizer=optimizer).evaluation())) == rules


def test_a_hook_that_waits_for_the_last_micro_batch_accumulates() -> None:
    recorded = train(None, k=K)
    records = recorded.records()
    counts = [[tokens(batch) for batch in window] for window in windows(STEPS)]
    assert [[m.terms[0].tokens for m in record.micro_batches] for record in records] == counts
    assert records[-1].step_size == pytest.approx(RATE, rel=1e-3)
    assert set(accused(recorded.evaluation())) == {"reduction.token_weights_unequal"}


def test_the_hooks_of_a_backward_are_removed_after_it() -> None:
    net: Any = tiny_model()
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(apply)
    with recorded_to_the_end():
        for batch in windows(1)[0]:
            cross_entropy(net, batch).backward()
            assert not any(parameter._backward_hooks for parameter in net.parameters())
