"""An evaluator that takes over a long run continues at once, with the result of the first one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from sqlalchemy import func, select

from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store import tables
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import evaluation
from gradledger_monitor.store.steps.curves import curves
from gradledger_monitor.workers.evaluator import Evaluator
from helpers.batches import EndRecord, EvalRecord, fair_step, step
from helpers.sending import judged, send

Stores = Callable[[], Store]

EVERY = 16


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradledger_monitor.store.evaluation.snapshots.EVERY_STEPS", EVERY)


def spoil(store: Store, last: int) -> None:
    """Make the first records unreadable: a judge that reads them again fails."""
    with store.writing() as connection:
        connection.exec_driver_sql(f"UPDATE chunks SET records = 'rubbish' WHERE last <= {last}")


def levels(store: Store) -> dict[int, int]:
    """The snapshots there are: steps by level."""
    with store.reading() as connection:
        columns = (tables.snapshots.c.level, tables.snapshots.c.steps)
        return dict(connection.execute(select(*columns)).all())


def test_a_new_evaluator_does_not_start_with_the_first_step(store: Store) -> None:
    for first, end in ((1, 97), (97, 101)):
        send(store, map(step, range(first, end)))
    Evaluator(store).evaluate_pending()
    spoil(store, 96)
    send(store, map(step, range(101, 111)))
    Evaluator(store).evaluate_pending()
    (finding,) = evaluation(store, "r").findings
    assert judged(store) == 110
    assert (finding.first_step, finding.last_step, finding.steps) == (1, 110, 110)


def test_evaluators_in_succession_give_the_result_of_one(stores: Stores) -> None:
    records = [step(n) if n % 5 else fair_step(n) for n in range(1, 201)]
    answers = []
    for restarts in (False, True):
        store = stores()
        evaluator, chance = Evaluator(store), random.Random(1)
        at = 0
        while at < len(records):
            count = chance.randrange(1, 30)
            send(store, records[at : at + count])
            send(store, [EvalRecord(at + 1, 1.0, {"loss": 1.0 + at / 100})])
            evaluator.evaluate_pending()
            evaluator, at = Evaluator(store) if restarts else evaluator, at + count
        answers.append((evaluation(store, "r"), curves(store, "r"), judged(store)))
    assert answers[0] == answers[1] and answers[0][2] == 200


def test_snapshots_stand_closer_together_where_the_run_is(store: Store) -> None:
    evaluator = Evaluator(store)
    for begin in range(0, 40 * EVERY, EVERY):
        send(store, map(fair_step, range(begin + 1, begin + EVERY + 1)))
        evaluator.evaluate_pending()
    assert levels(store) == {0: 39 * EVERY, 1: 38 * EVERY, 2: 36 * EVERY, 3: 40 * EVERY} | {
        4: 16 * EVERY,
        5: 32 * EVERY,
    }


def test_a_late_record_goes_back_no_further_than_it_must(store: Store) -> None:
    evaluator = Evaluator(store, rank_timeout=0)
    for rank in (0, 1):
        send(store, map(step, range(1, 151)), rank=rank, world_size=2, run="in-time")
    for begin in range(1, 151, 10):
        send(store, map(step, range(begin, begin + 10)), rank=0, world_size=2)
        if begin < 141:
            send(store, map(step, range(begin, begin + 10)), rank=1, world_size=2)
        evaluator.evaluate_pending()
    assert judged(store) == 150 and evaluation(store, "r") != evaluation(store, "in-time")
    spoil(store, 130)
    send(store, map(step, range(141, 151)), rank=1, world_size=2)
    Evaluator(store, rank_timeout=0).evaluate_pending()
    assert evaluation(store, "r") == evaluation(store, "in-time")
    assert curves(store, "r") == curves(store, "in-time")


def test_another_description_begins_with_the_first_step(store: Store) -> None:
    send(store, map(step, range(1, 101)))
    Evaluator(store).evaluate_pending()
    assert levels(store)
    send(store, [], contract="sequence")
    assert not levels(store)
    Evaluator(store).evaluate_pending()
    assert evaluation(store, "r").verdict != "broken" and judged(store) == 100


def test_other_choices_begin_with_the_first_step(store: Store) -> None:
    send(store, map(step, range(1, 101)))
    Evaluator(store).evaluate_pending()
    send(store, map(step, range(101, 111)))
    off = RuleOverrides(off=("reduction.*",))
    Evaluator(store, overrides=lambda: off).evaluate_pending()
    assert evaluation(store, "r").findings == [] and judged(store) == 110


def test_a_very_late_evaluation_is_compared_with_the_losses_before_it(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradledger_monitor.model.run_history.LATE_STEPS", 32)
    monkeypatch.setattr("gradledger_monitor.store.steps.ingest.LATE_STEPS", 32)
    evaluations = [EvalRecord(n, 1.0, {"loss": float(n)}) for n in (20, 40, 60, 80)]
    steps = [fair_step(n) for n in range(1, 301)]
    for n, record in enumerate(steps):
        record.micro_batches[0].loss = 5.0 - n / 100
    answers = []
    for late in (False, True):
        store = stores()
        evaluator = Evaluator(store)
        for records in (steps, evaluations) if late else (evaluations, steps):
            send(store, records)
            evaluator.evaluate_pending()
        answers.append(evaluation(store, "r"))
    assert answers[0] == answers[1]
    assert "eval.diverging" in {finding.rule for finding in answers[0].findings}


def test_a_short_run_that_ended_has_a_snapshot(store: Store) -> None:
    send(store, [step(1), step(2), EndRecord(5.0)])
    Evaluator(store).evaluate_pending()
    with store.reading() as connection:
        assert connection.scalar(select(func.max(tables.snapshots.c.steps))) == 2
