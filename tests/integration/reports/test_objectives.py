"""Every objective of a run is in its JSON, its post-mortem and its step documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pytest import approx
from sqlalchemy import delete

from gradledger.records import StepRecord, Term
from gradledger_monitor.reports.incident import build_incident
from gradledger_monitor.reports.objectives import objective_curves, recent_objectives
from gradledger_monitor.reports.render import as_json, html, markdown
from gradledger_monitor.reports.topology import run_topology
from gradledger_monitor.reports.windows import MOST_RECORDS
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.steps.curves import Span
from gradledger_monitor.store.tables import chunks
from helpers.batches import EndRecord, fair_step, step
from helpers.facts import record as record_of
from helpers.facts import term
from helpers.objectives import with_router
from helpers.sending import evaluate_pending, send


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty database."""
    store = Store(f"sqlite:///{tmp_path / 'g.db'}")
    store.migrate()
    return store


def evaluated(store: Store, run: str, records: list[Any], **fields: Any) -> None:
    """A run whose steps are evaluated."""
    send(store, records, run=run, **fields)
    while evaluate_pending(store, 0):
        pass


def test_objectives_of_the_last_steps_stand_side_by_side(store: Store) -> None:
    evaluated(store, "r1", [with_router(n, divided=False) for n in range(1, 9)])
    findings = queries.evaluation(store, "r1").findings
    loss, router = recent_objectives(store, "r1", findings)
    assert (loss.name, loss.text, loss.rule) == ("cross entropy", "balanced", None)
    assert (router.name, router.text) == ("mean", "not divided by K = 4")
    assert (router.rule, router.steps) == ("reduction.missing_division", 8)
    assert (loss.balance, router.balance) == approx((1.0, 0.04))
    assert (loss.count, router.count, router.unit) == (40, 16, "elements")


def test_the_finding_of_a_single_loss_is_that_of_its_objective(store: Store) -> None:
    undivided = [record_of([term(10, 0.1, undivided=True)] * 4, n) for n in range(1, 9)]
    evaluated(store, "r1", undivided)
    (only,) = recent_objectives(store, "r1", queries.evaluation(store, "r1").findings)
    assert (only.status, only.rule) == ("finding", "reduction.missing_division")


def test_the_mean_and_the_peak_are_over_the_last_fifty_steps(store: Store) -> None:
    evaluated(store, "r1", [step(1), *(fair_step(n) for n in range(2, 101)), step(101)])
    (only,) = recent_objectives(store, "r1")
    assert (only.first_step, only.last_step, only.steps) == (52, 101, 50)
    assert only.misallocation == approx(0.25 / 50)
    assert only.misallocation_peak == approx(0.25)


def test_losses_of_one_kind_in_windows_of_their_own_are_apart(store: Store) -> None:
    """Two tasks in turn, and a regularisation with a constant in front of it every fourth step."""

    def record(number: int) -> StepRecord:
        each = fair_step(number)
        for micro_batch in each.micro_batches:
            (loss,) = micro_batch.terms
            loss.head = 1 + number % 2
            loss.coefficient = 1.0 if number % 4 == 0 else None
        return each

    evaluated(store, "r1", [record(n) for n in range(1, 81)])
    summaries = recent_objectives(store, "r1", most=MOST_RECORDS)
    assert {s.name: (s.first_step, s.last_step, s.steps) for s in summaries} == {
        "cross entropy (as in step 80)": (4, 80, 20),
        "cross entropy (as in step 79)": (1, 79, 40),
        "cross entropy (as in step 78)": (2, 78, 20),
    }


def test_two_penalties_of_one_window_are_numbered(store: Store) -> None:
    penalties = [
        Term("SumBackward0", "sum", elements=9, element_weight=1.0, penalty=True, head=layer)
        for layer in (1, 2)
    ]
    terms = [[term(10, 0.1), *penalties]]
    evaluated(store, "r1", [record_of(terms, n) for n in range(1, 9)])
    assert {summary.name for summary in recent_objectives(store, "r1")} == {
        "cross entropy",
        "penalty on the parameters 1",
        "penalty on the parameters 2",
    }


def test_a_layer_that_is_new_in_every_window_separates_nothing(store: Store) -> None:
    records = [fair_step(n) for n in range(1, 9)]
    for record in records:
        for micro_batch in record.micro_batches:
            micro_batch.terms[0].head = record.step
    evaluated(store, "r1", records)
    assert [summary.steps for summary in recent_objectives(store, "r1")] == [8]


def test_curves_of_each_objective_are_spread_over_the_run(store: Store) -> None:
    evaluated(store, "r1", [with_router(n, divided=n > 50) for n in range(1, 101)])
    loss, router = objective_curves(store, "r1", Span(0), 12)
    assert loss.step == router.step and len(loss.step) == 12
    assert (loss.step[0], loss.step[-1]) == (1, 100)
    assert (router.balance[0], router.balance[-1]) == approx((0.04, 0.01))
    assert loss.misallocation == approx([0.0] * 12)


def test_the_post_mortem_has_them_in_every_format(store: Store) -> None:
    evaluated(store, "r1", [with_router(n, divided=False) for n in range(1, 9)])
    incident = build_incident(store, "r1")
    document = json.loads(as_json(incident))
    assert [o["name"] for o in document["objectives"]] == ["cross entropy", "mean"]
    assert "| mean | not divided by K = 4 | 16 elements | 0.04 |" in markdown(incident)
    assert "Not divided by K = 4" in html(incident)


def test_a_run_with_one_objective_shows_no_table_of_objectives(store: Store) -> None:
    evaluated(store, "r1", [fair_step(1), EndRecord(2_000.0, [1])])
    incident = build_incident(store, "r1")
    assert "Objectives" not in html(incident) + markdown(incident)
    assert len(json.loads(as_json(incident))["objectives"]) == 1
    assert incident.topology is None and "Ranks" not in markdown(incident)


def test_a_run_whose_end_never_came_is_lost(store: Store) -> None:
    evaluated(store, "r1", [fair_step(1)])
    last_seen = build_incident(store, "r1").run.last_seen
    assert "lost: no end" not in html(build_incident(store, "r1", now=last_seen + 60))
    assert "lost: no end was recorded" in html(build_incident(store, "r1", now=last_seen + 600))


def test_the_ranks_of_a_run_are_in_its_post_mortem(store: Store) -> None:
    for rank in range(2):
        send(store, [step(1, sync="averaged")], run="r1", rank=rank, world_size=3)
    while evaluate_pending(store, 0):
        pass
    found = run_topology(store, "r1")
    assert found is not None and found.never_sent == [2]
    incident = build_incident(store, "r1")
    assert "| 2 | never sent a record |" in markdown(incident)
    assert json.loads(as_json(incident))["topology"]["never_sent"] == [2]
    assert "Never sent a record" in html(incident)


def test_a_rank_that_became_silent_is_named_with_its_last_step(store: Store) -> None:
    for rank, steps in enumerate((6, 6, 4)):
        records = [step(n, sync="averaged") for n in range(1, steps + 1)]
        send(store, records, run="r1", rank=rank, world_size=3)
    while evaluate_pending(store, 0):
        pass
    incident = build_incident(store, "r1")
    silent = "fter step 4, this holds for ranks 0 and 1: rank 2 sent no record of the last step."
    assert silent in html(incident) and silent in markdown(incident)
    assert json.loads(as_json(incident))["topology"]["behind"] == {"2": 4}
    assert "| 2 | no record of this step |" in markdown(incident)


def test_a_rank_without_stored_records_is_not_one_that_never_sent(store: Store) -> None:
    for rank, steps in enumerate((400, 400, 4)):
        records = [step(n, sync="averaged") for n in range(1, steps + 1)]
        send(store, records, run="r1", rank=rank, world_size=3)
    while evaluate_pending(store, 0):
        pass
    with store.writing() as connection:  # as retention does
        connection.execute(delete(chunks).where(chunks.c.rank == 2))
    found = run_topology(store, "r1")
    assert found is not None and found.absent == {2: None}
    text = markdown(build_incident(store, "r1"))
    assert "This holds for ranks 0 and 1: rank 2 sent no record of the last step." in text
    assert "never sent" not in text


def test_a_rank_that_steps_another_optimizer_only_is_not_silent(store: Store) -> None:
    for rank in range(2):
        records = [step(n, optimizer=rank, sync="averaged") for n in range(1, 7)]
        send(store, records, run="r1", rank=rank, world_size=2, optimizers=["a", "b"])
    while evaluate_pending(store, 0):
        pass
    for optimizer in range(2):
        found = run_topology(store, "r1", optimizer)
        assert found is not None and found.absent == {}
