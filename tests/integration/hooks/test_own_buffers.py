"""An optimizer that steps on its own flat buffers, as ZeRO's second stage does on one rank."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

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
