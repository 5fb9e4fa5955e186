"""Ranks that a launcher starts may hold replicas, also if they create no process group."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.training import recording


@pytest.mark.parametrize("ranks", [1, 2])
def test_parameters_of_launched_ranks_are_sampled(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    with recording() as records:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    (step,) = records.steps
    assert (step.replica is not None) == (ranks > 1)
