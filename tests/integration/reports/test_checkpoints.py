"""``ledger.checkpoint`` in a training script stores a checkpoint for the post-mortem."""

from __future__ import annotations

import pytest
import torch

import gradledger
from gradledger.settings import NO_SPOOL
from gradledger_monitor.gate.private_service import private_service
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.runs import checkpoints, queries


def test_a_checkpoint_belongs_to_the_step_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEDGER_SPOOL", NO_SPOOL)
    with private_service(RuleOverrides()) as service:
        with gradledger.watch(url=service.url, on_finding="off") as ledger:
            model = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for number in range(1, 5):
                model(torch.randn(3, 2)).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if number % 2 == 0:
                    ledger.checkpoint(f"out/{number}")
            ledger.checkpoint(step=3)
        (run,) = queries.list_runs(service.store)
        saved = checkpoints.of_run(service.store, run.id)
    assert [(checkpoint.step, checkpoint.path) for checkpoint in saved] == [
        (2, "out/2"),
        (3, ""),
        (4, "out/4"),
    ]
    assert run.environment["device"] == "cpu"
