"""The lines of a script reach the findings of its run, and stay with it in an archive."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gradledger
from gradledger.records import CodeLocation
from gradledger.settings import NO_SPOOL
from gradledger_monitor.gate.private_service import private_service
from gradledger_monitor.ingest.decode import read
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.reports.incident import build_incident
from gradledger_monitor.reports.render import html, markdown
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import code_locations, dump, queries
from gradledger_monitor.store.steps.ingest import store_batch
from helpers.batches import batch, fair_step
from helpers.sending import new_store
from helpers.training import cross_entropy, tiny_model, windows


def train(url: str) -> None:
    """Steps on every micro-batch of a loop that zeroes its gradients each time."""
    with gradledger.watch(url=url, on_finding="off", overhead="full"):
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(4):
            for micro_batch in window:
                optimizer.zero_grad()
                loss = cross_entropy(model, micro_batch)
                loss.backward()
            optimizer.step()


def zeroed(store: Store, run: str) -> Finding:
    """The finding on the gradients that are zeroed too early."""
    findings = queries.evaluation(store, run).findings
    return next(f for f in findings if f.rule == "loop.zeroed_every_microbatch")


def test_a_finding_has_the_lines_of_its_run_also_after_an_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRADLEDGER_SPOOL", NO_SPOOL)
    with private_service(RuleOverrides()) as service:
        train(service.url)
        service.evaluate_all()
        (run,) = queries.list_runs(service.store)
        finding = zeroed(service.store, run.id)
        incident = build_incident(service.store, run.id)
        other = new_store(tmp_path / "other.db")
        dumped = dump.dump(service.store, run.id)
        dump.restore(other, dumped.run, list(dumped.rows), 1.0)
    lines = Path(__file__).read_text().splitlines()
    first = finding.code[0]
    assert first.file.endswith("test_code_locations.py")
    assert lines[first.line - 1].strip() == "optimizer.zero_grad()"
    assert [location.role for location in finding.code] == ["zero_grad", "backward"]
    assert incident is not None
    for report in (markdown(incident), html(incident)):
        assert f"test_code_locations.py:{first.line}" in report
        assert "optimizer.zero_grad()" in report
    with other.reading() as connection:
        key = queries.require_run(connection, run.id).key
        imported = code_locations.of_run(connection, key)[0]
    assert first in imported
    other.close()


def test_several_ranks_send_a_line_once_and_old_hooks_send_none(tmp_path: Path) -> None:
    store = new_store(tmp_path / "runs.db")
    located = fair_step(1)
    located.code = [
        CodeLocation("backward", "train.py", 7),
        CodeLocation("step", "train.py", 9),
    ]
    for rank in (0, 1):
        store_batch(store, read(batch("r", [located], rank=rank, world_size=2)), 1.0)
        store_batch(store, read(batch("old", [fair_step(1)], rank=rank, world_size=2)), 1.0)
    with store.reading() as connection:
        keys = [queries.require_run(connection, name).key for name in ("r", "old")]
        located_in, old = (code_locations.of_run(connection, key) for key in keys)
    assert [(each.role, each.line) for each in located_in[0]] == [("backward", 7), ("step", 9)]
    assert old == {}
    store.close()
