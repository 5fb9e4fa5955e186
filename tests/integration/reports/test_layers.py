"""Layers reach the heat map of their run; their number is bounded, and an archive has them."""

from __future__ import annotations

from pathlib import Path

import httpx2

from gradledger.records import Layers
from gradledger_monitor.gate.private_service import private_service
from gradledger_monitor.ingest.decode import read
from gradledger_monitor.reports.incident import build_incident
from gradledger_monitor.reports.layers import layers_by_step
from gradledger_monitor.reports.render import html
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.runs import dump
from gradledger_monitor.store.steps import layers
from gradledger_monitor.store.steps.ingest import store_batch
from helpers.batches import batch, fair_step
from helpers.sending import new_store


def measured(gradient: float) -> Layers:
    """Two layers, of which the first has no gradient."""
    return Layers(
        names=["<first>", "last"],
        sizes=[4, 4],
        gradient=[None, gradient],
        parameter=[1.0, 1.0],
        update=[0.0, 0.1],
    )


def test_the_report_shows_the_layers_also_after_an_import(tmp_path: Path) -> None:
    store, other = new_store(tmp_path / "runs.db"), new_store(tmp_path / "other.db")
    steps = [fair_step(step) for step in (1, 2)]
    for step in steps:
        step.layers = measured(0.5 * step.step)
    store_batch(store, read(batch("r", steps)), 1.0)
    dumped = dump.dump(store, "r")
    dump.restore(other, dumped.run, list(dumped.rows), 1.0)
    for each in (store, other):
        by_step = layers_by_step(each, "r")
        assert [(step, [layer.gradient for layer in of]) for step, of in by_step] == [
            (1, [None, 0.5]),
            (2, [None, 1.0]),
        ]
        each.close()


def test_a_name_is_text_in_the_report(tmp_path: Path) -> None:
    store = new_store(tmp_path / "runs.db")
    step = fair_step(1)
    step.layers = measured(0.5)
    store_batch(store, read(batch("r", [step])), 1.0)
    page = html(build_incident(store, "r"))
    assert "&lt;first&gt;, step 1: none" in page and "<first>" not in page
    store.close()


def test_a_sender_of_too_many_is_thinned_and_keeps_the_ends(tmp_path: Path) -> None:
    store = new_store(tmp_path / "runs.db")
    steps = [fair_step(step) for step in range(1, 2 * layers.MOST_STEPS + 50)]
    for step in steps:
        step.layers = measured(0.5)
    store_batch(store, read(batch("r", steps)), 1.0)
    by_step, sharded = layers.of_run(store, "r", 0)
    assert len(by_step) <= layers.MOST_STEPS and not sharded
    assert {1, 2, 3, steps[-1].step} <= set(by_step)
    store.close()


def test_shards_are_shown_once_all_ranks_have_sent_theirs(tmp_path: Path) -> None:
    store = new_store(tmp_path / "runs.db")
    for rank, steps in ((0, (1, 2)), (1, (1,))):
        sent = [fair_step(step) for step in steps]
        for step in sent:
            step.layers, step.sharded = measured(1.0 + 2 * rank), True
        store_batch(store, read(batch("r", sent, rank=rank, world_size=2)), 1.0)
    ((number, (_, last)),) = layers_by_step(store, "r")
    assert number == 1 and last.gradient == 5**0.5 and last.size == 8
    store.close()


def test_without_layers_page_and_report_have_the_reason() -> None:
    step = fair_step(1)
    step.missing["layers"] = "gradients that are <sparse>"
    reason = "Not measured: gradients that are &lt;sparse&gt;."
    with private_service(RuleOverrides()) as service:
        store_batch(service.store, read(batch("r", [step])), 1.0)
        assert 'id="layers"' not in html(build_incident(service.store, "r"))  # not evaluated yet
        service.evaluate_all()
        assert reason in html(build_incident(service.store, "r"))
        assert reason in httpx2.get(f"{service.url}/runs/r").text
