"""What is given up with age, what is kept for ever, and that nothing is judged otherwise for it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
from sqlalchemy import func, select

from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store import tables
from gradledger_monitor.store.admin.retention import RemovedRows, RetentionPolicy
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import unpack_records
from gradledger_monitor.store.runs.queries import evaluation, step_records
from gradledger_monitor.store.steps.curves import Span, curves
from gradledger_monitor.workers.evaluator import Evaluator
from gradledger_monitor.workers.retention import run_retention
from helpers.batches import EvalRecord, fair_step, step
from helpers.command import gradledger
from helpers.sending import judged, send

EVERYTHING = RetentionPolicy(detail_days=1e-9, steps_days=1e-9)  # all that may go, goes
DETAIL = RetentionPolicy(detail_days=1e-9, steps_days=0)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradledger_monitor.store.evaluation.snapshots.EVERY_STEPS", 16)


def house(store: Store, policy: RetentionPolicy) -> RemovedRows:
    """Keep house."""
    return run_retention(store, policy, RuleOverrides())


def live_run(store: Store, evaluator: Evaluator, first: int = 1, last: int = 400) -> None:
    """Fair steps, with one bad one at 150 and a spike of the norm at 222."""
    for begin in range(first, last + 1, 50):
        records = [fair_step(n) if n != 150 else step(n) for n in range(begin, begin + 50)]
        for record in records:
            if record.step == 222:
                record.norm = 1_000.0
        send(store, records)
        evaluator.evaluate_pending()


def left(store: Store) -> list[int]:
    """Steps of which what the ranks sent is still there."""
    with store.reading() as connection:
        found = connection.scalars(select(tables.chunks.c.records).order_by(tables.chunks.c.first))
        return [step for blob in found for step in unpack_records(blob)]


def test_detail_goes_first_and_what_is_around_findings_stays(store: Store) -> None:
    live_run(store, Evaluator(store))
    send(store, [EvalRecord(300, 1.0, {"loss": 1.0})])
    Evaluator(store).evaluate_pending()
    before = evaluation(store, "r"), curves(store, "r")
    assert house(store, DETAIL).records > 300
    kept = left(store)
    for place in (150, 300):
        assert set(range(place - 5, place + 6)) <= set(kept), place
    assert len(kept) < 70
    assert (evaluation(store, "r"), curves(store, "r")) == before
    assert step_records(store, "r", 0, 150) and not step_records(store, "r", 0, 50)
    assert house(store, DETAIL).records == 0


def test_single_steps_go_next_and_every_spike_stays(store: Store) -> None:
    live_run(store, Evaluator(store), last=1_000)
    whole = curves(store, "r", points=10)
    assert house(store, EVERYTHING).steps > 700
    assert curves(store, "r", points=10) == whole
    drawn = curves(store, "r")
    assert (drawn["first"][0], drawn["step"][-1]) == (1, 1_000)
    assert max(drawn["norm_high"]) == 1_000.0
    assert curves(store, "r", Span(0, 218, 226))["step"][-1] >= 226


def test_a_pruned_run_continues_and_late_records_are_refused_with_the_reason(store: Store) -> None:
    other = Evaluator(store)
    live_run(store, other)
    house(store, DETAIL)
    live_run(store, Evaluator(store), 401, 500)
    assert judged(store) == 500
    late = send(store, [fair_step(7)])
    assert late.stored == 0 and "comes too late" in late.refused.listed[0].reason
    (bad,) = (f for f in evaluation(store, "r").findings if f.rule.startswith("reduction."))
    assert (bad.first_step, bad.steps) == (150, 1)


def test_pruned_findings_stay_when_all_other_steps_are_evaluated_again(store: Store) -> None:
    live_run(store, Evaluator(store))
    before = evaluation(store, "r")
    house(store, DETAIL)
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE runs SET rewind = true, revision = revision + 1")
    Evaluator(store).evaluate_pending()
    assert evaluation(store, "r") == before and judged(store) == 400


def test_what_is_young_stays(store: Store) -> None:
    live_run(store, Evaluator(store), last=100)
    with store.writing() as connection:
        connection.execute(tables.runs.update().values(last_seen=4e9))
        connection.execute(tables.snapshots.update().values(taken=4e9))
    assert house(store, RetentionPolicy()) == RemovedRows(0, 0)
    assert house(store, RetentionPolicy(0, 0)) == RemovedRows(0, 0)
    assert len(left(store)) == 100


def test_a_run_that_crashed_long_ago_is_pruned_too(store: Store) -> None:
    send(store, [fair_step(n) for n in range(1, 9)])
    Evaluator(store).evaluate_pending()
    assert house(store, DETAIL).records == 8
    with store.reading() as connection:
        assert connection.scalar(select(func.max(tables.progress.c.pruned))) == 8


def test_the_commands_list_rows_and_reclaim_space(databases: Callable[[], str]) -> None:
    database = databases()

    def run(*said: str) -> str:
        kept = {"GRADLEDGER_KEEP_DETAIL_DAYS": "1", "GRADLEDGER_KEEP_STEPS_DAYS": "0"}
        done = gradledger("db", *said, "--db", database, environment={**os.environ, **kept})
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("upgrade").startswith("no tables -> ")
    store = Store(database)
    live_run(store, Evaluator(store), last=100)
    assert re.search(r"^chunks +2 *$", run("stats"), re.MULTILINE)
    assert "deleted 100 records and 0 steps" in run("vacuum")
    assert re.search(r"^chunks +0 *$", run("stats"), re.MULTILINE)
    assert run("upgrade").split(" -> ")[0] != "no tables"
    store.close()
