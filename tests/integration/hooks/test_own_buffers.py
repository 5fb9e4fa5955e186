"""An optimizer that steps on its own flat buffers, as ZeRO's second stage does on one rank."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradledger.capture.step_sampling import StepSampler
from gradledger_monitor.model.chart_metrics import chart_metrics
from helpers.training import Batches, Recording, accused, cross_entropy, recording, windows
from helpers.training import tiny_model as model
from helpers.training import tokens as tokens_of

UNEQUAL = "reduction.token_weights_unequal"


def move(net: nn.Module, buffer: Tensor) -> None:
    """Every gradient goes into the buffer, and is cleared."""
    assert buffer.grad is not None
    start = 0
    for parameter in net.parameters():
        assert parameter.grad is not None
        buffer.grad[start : start + parameter.numel()] += parameter.grad.flatten()
        parameter.grad, start = None, start + parameter.numel()


def train(data: list[Batches], right: bool) -> Recording:
    """The engine's loop: backward, move; after the last, step on the buffer and copy it back."""
    net = model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        buffer = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
        optimizer.param_groups[0]["params"] = [buffer.requires_grad_()]
        for window in data:
            buffer.grad = torch.zeros_like(buffer)
            everyones = sum(map(tokens_of, window))
            for batch in window:
                if right:
                    loss = cross_entropy(net, batch, reduction="sum") / everyones
                else:
                    loss = cross_entropy(net, batch) / len(window)
                loss.backward()
                move(net, buffer)
            optimizer.step()
            nn.utils.vector_to_parameters(buffer.detach(), net.parameters())
    return recorded


@pytest.mark.parametrize("right", [True, False])
def test_what_was_moved_counts_and_only_its_size_is_unknown(right: bool) -> None:
    recorded = train(windows(4), right)
    for step, window in zip(recorded.facts(), windows(4), strict=True):
        assert step.ledger is not None
        assert [e.tokens for e in step.ledger.entries] == list(map(tokens_of, window))
        assert (step.ledger.misallocation < 1e-6) == right
        assert chart_metrics(step)["balance"] is None
        assert "its own buffers" in str(step.factor_unmeasured)
        assert step.record.noise == []
    evaluation = recorded.evaluation()
    expected = ({}, "incomplete") if right else ({UNEQUAL: 1}, "broken")
    assert (accused(evaluation), evaluation.verdict) == expected


def step_of_groups(net: nn.Module, optimizer: torch.optim.Optimizer, emptied: bool) -> None:
    """One step of buffers, a call for each group: others are left out, or hold no parameters."""
    groups = optimizer.param_groups
    buffers = [group["params"] for group in groups]
    for group, part in zip(groups, buffers, strict=True):
        if emptied:
            for other in groups:
                other["params"] = part if other is group else []
        else:
            optimizer.param_groups = [group]
        optimizer.step()
        optimizer.param_groups = groups
    for group, part in zip(groups, buffers, strict=True):
        group["params"] = part
    flat = torch.cat([part[0].detach() for part in buffers])
    nn.utils.vector_to_parameters(flat, net.parameters())


@pytest.mark.parametrize("emptied", [True, False])
@pytest.mark.parametrize("skips", [True, False])
def test_a_step_in_several_calls_is_one_step(emptied: bool, skips: bool) -> None:
    sampler = StepSampler(1e-12, first_steps=2, burst=2, longest_period=4) if skips else None
    net, data = model(), windows(12)
    with recording(step_sampler=sampler) as recorded:
        first, *rest = net.parameters()
        optimizer = torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=0.01)
        for group in optimizer.param_groups:
            buffer = nn.utils.parameters_to_vector(group["params"]).detach().clone()
            group["params"] = [buffer.requires_grad_()]
        for window in data:
            cross_entropy(net, window[0]).backward()
            for group, own in zip(optimizer.param_groups, ([first], rest), strict=True):
                gradients = [p.grad.flatten() for p in own if p.grad is not None]
                group["params"][0].grad = torch.cat(gradients)
            net.zero_grad()
            step_of_groups(net, optimizer, emptied)
    records = recorded.records()
    assert all(len(record.micro_batches) == 1 for record in records)
    assert all("one after another" in record.missing["norm"] for record in records)
    sampled = [1, 2, 5, 6, 9, 10] if skips else list(range(1, 13))
    assert [record.step for record in records] == sampled
