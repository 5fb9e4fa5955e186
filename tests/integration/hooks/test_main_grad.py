"""Hooks that move each gradient to ``main_grad`` inside the backward, as Megatron's do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradledger.capture.gradient_probe import ABSENT, GradientProbe
from helpers.training import Batches, Recording, accused, cross_entropy, recording, windows
from helpers.training import tiny_model as model
from helpers.training import tokens as tokens_of

MISSING, UNEQUAL = "reduction.missing_division", "reduction.token_weights_unequal"
NOT_ZEROED = "loop.grads_not_zeroed"
ZEROED = "loop.zeroed_every_microbatch"
STEPS = 6

Loss = Callable[[nn.Module, Batches, int], Tensor]


def parameters(net: nn.Module) -> list[Any]:
    """They have attributes that their type does not declare."""
    return list(net.parameters())


def move(parameter: Any) -> None:
    """The buffer is made when the first gradient arrives, if none was made before."""
    if getattr(parameter, "main_grad", None) is None:
        parameter.main_grad = torch.zeros_like(parameter)
    parameter.main_grad.add_(parameter.grad)
    parameter.grad = None


def use_one_buffer(net: nn.Module) -> None:
    """All of them are views of one buffer, and have its version."""
    buffer, start = torch.zeros(sum(p.numel() for p in parameters(net))), 0
    for parameter in parameters(net):
        view = buffer[start : start + parameter.numel()].view_as(parameter)
        parameter.main_grad, start = view, start + parameter.numel()


def prepare(net: nn.Module, one_buffer: bool = False) -> None:
    if one_buffer:
        use_one_buffer(net)
    for parameter in parameters(net):
        parameter.register_post_accumulate_grad_hook(move)


def clear(net: nn.Module) -> None:
    for parameter in parameters(net):
        parameter.main_grad.zero_()


def drop(net: nn.Module) -> None:
    for parameter in parameters(net):
        del parameter.main_grad


def leave(_: nn.Module) -> None:
    """Nothing is cleared."""


def assign(net: nn.Module) -> None:
    for parameter in parameters(net):
        parameter.grad = parameter.main_grad


def of_all_tokens(net: nn.Module, window: Batches, index: int) -> Tensor:
    return cross_entropy(net, window[index], reduction="sum") / sum(map(tokens_of, window))


def mean(net: nn.Module, window: Batches, index: int) -> Tensor:
    return cross_entropy(net, window[index]) / len(window)


def after_a_clear(net: nn.Module, window: Batches, index: int) -> Tensor:
    if index:
        clear(net)
    return of_all_tokens(net, window, index)


def undivided(net: nn.Module, window: Batches, index: int) -> Tensor:
    return cross_entropy(net, window[index])


def train(
    loss: Loss,
    end: Callable[[nn.Module], None],
    begin: Callable[[nn.Module], None] = assign,
    one_buffer: bool = False,
) -> Recording:
    net = model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        prepare(net, one_buffer)
        for window in windows(STEPS):
            for index in range(len(window)):
                loss(net, window, index).backward()
            begin(net)
            optimizer.step()
            optimizer.zero_grad()
            end(net)
    return recorded


@pytest.mark.parametrize("one_buffer", [False, True])
@pytest.mark.parametrize("end", [clear, drop])
def test_a_right_loop_is_balanced(end: Callable[[nn.Module], None], one_buffer: bool) -> None:
    recorded = train(of_all_tokens, end, one_buffer=one_buffer and end is clear)
    for step, window in zip(recorded.facts(), windows(STEPS), strict=True):
        assert step.ledger is not None
        assert [e.tokens for e in step.ledger.entries] == list(map(tokens_of, window))
        assert step.ledger.misallocation < 1e-6
        assert step.ledger.balance == pytest.approx(1, rel=1e-4)
        assert step.record.post_factor == pytest.approx(1)
    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


@pytest.mark.parametrize(
    ("loss", "end", "rule"),
    [
        (undivided, clear, MISSING),
        (mean, clear, UNEQUAL),
        (of_all_tokens, leave, NOT_ZEROED),
        (after_a_clear, clear, ZEROED),
    ],
)
@pytest.mark.parametrize("one_buffer", [False, True])
def test_wrong_ones_are_accused(
    loss: Loss, end: Callable[[nn.Module], None], rule: str, one_buffer: bool
) -> None:
    assert rule in accused(train(loss, end, one_buffer=one_buffer).evaluation())


def test_gradients_that_are_not_assigned_are_not_balanced() -> None:
    """The optimizer may read them by itself, or step on nothing."""
    recorded = train(of_all_tokens, clear, begin=leave)
    assert "main_grad" in str(recorded.facts()[-1].factor_unmeasured)
    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "incomplete")


def test_a_loop_that_moves_them_after_backward_accumulates_nothing_inside_it() -> None:
    net = model()
    use_one_buffer(net)
    with recording() as recorded:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for window in windows(STEPS):
            for index in range(len(window)):
                of_all_tokens(net, window, index).backward()
                for parameter in net.parameters():
                    move(parameter)
            assign(net)
            optimizer.step()
            optimizer.zero_grad()
            clear(net)
    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


def test_the_probe_keeps_no_buffer() -> None:
    parameter: Any = nn.Parameter(torch.ones(4))
    parameter.register_post_accumulate_grad_hook(move)
    probe = GradientProbe()
    probe.begin_without([parameter])
    parameter.sum().backward()
    assert probe.marks([parameter]) == [ABSENT]
    probe.find_moved([parameter])
    assert probe.marks([parameter]) != [ABSENT]
    sample = probe.copy([parameter])
    assert sample is not None
    assert sample.values() == [1.0] * 4
    buffer = weakref.ref(parameter.main_grad)
    del parameter.main_grad
    gc.collect()
    assert buffer() is None
    assert probe.marks([parameter]) == [ABSENT]
