"""The evaluator takes steps in order and waits for ranks; no arrival order changes its result."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation.pending import run_status
from gradledger_monitor.store.evaluation.results import EvaluationConflict, EvaluationUpdate, commit
from gradledger_monitor.store.runs.queries import evaluation, get_run
from gradledger_monitor.store.steps.curves import Span, curves
from gradledger_monitor.workers.evaluator import Evaluator
from helpers.batches import EndRecord, fair_step, step
from helpers.sending import Clock, evaluate_pending, judged, send

Stores = Callable[[], Store]


def test_a_run_that_was_not_evaluated_is_incomplete(store: Store) -> None:
    send(store, [step(1)])
    assert evaluation(store, "r") == EvaluationResult("incomplete", [], [], {})


def test_an_evaluated_run_has_findings_metrics_and_a_verdict(store: Store) -> None:
    send(store, [step(1), step(2), step(3)])
    assert evaluate_pending(store) == ["r"]
    row = get_run(store, "r")
    assert row is not None
    (finding,) = evaluation(store, "r").findings
    assert finding.rule == "reduction.token_weights_unequal"
    assert (row.verdict, row.primary, row.steps, row.tokens) == ("broken", finding.title, 3, 120)
    assert curves(store, "r")["misallocation"] == pytest.approx([0.25, 0.25, 0.25])
    assert evaluate_pending(store) == []


def test_a_fair_run_is_balanced(store: Store) -> None:
    send(store, map(fair_step, range(1, 6)))
    evaluate_pending(store)
    assert evaluation(store, "r").verdict == "balanced"


def test_ranks_may_come_in_any_order(stores: Stores) -> None:
    sent = [(rank, number) for rank in range(3) for number in range(1, 11)]
    answers = []
    for seed in range(3):
        store = stores()
        evaluator = Evaluator(store)
        shuffled = random.Random(seed).sample(sent, len(sent)) if seed else sent
        for rank, number in shuffled:
            send(store, [step(number, sync="averaged")], rank=rank, world_size=3)
            evaluator.evaluate_pending()
        answers.append((evaluation(store, "r"), curves(store, "r"), judged(store)))
    assert answers[0][2] == 10
    assert all(answer == answers[0] for answer in answers)


def test_a_step_waits_for_its_missing_rank(store: Store) -> None:
    evaluator = Evaluator(store, now=Clock())
    send(store, [step(1), step(2)], rank=0, world_size=2)
    evaluator.evaluate_pending()
    assert judged(store) == 0
    send(store, [step(1)], rank=1, world_size=2)
    evaluator.evaluate_pending()
    assert judged(store) == 1


def test_a_step_is_evaluated_without_a_rank_that_sends_nothing_more(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    send(store, [step(1)], clock.time, rank=1, world_size=2)
    send(store, [step(1), step(2)], clock.time, rank=0, world_size=2)
    assert evaluator.evaluate_pending() == ["r"] and judged(store) == 1
    clock.time += 29
    assert evaluator.evaluate_pending() == [] and judged(store) == 1
    clock.time += 2
    assert evaluator.evaluate_pending() == ["r"] and judged(store) == 2
    assert evaluator.evaluate_pending() == []


def test_a_step_waits_a_short_time_for_a_rank_that_never_sent(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    send(store, [step(1)], clock.time, rank=0, world_size=2)
    evaluator.evaluate_pending()
    clock.time += 4
    assert evaluator.evaluate_pending() == [] and judged(store) == 0
    clock.time += 2
    assert evaluator.evaluate_pending() == ["r"] and judged(store) == 1


def test_a_step_is_evaluated_at_once_if_the_missing_rank_has_ended(store: Store) -> None:
    evaluator = Evaluator(store, now=Clock())
    send(store, [step(1), step(2)], rank=0, world_size=2)
    send(store, [step(1), EndRecord(5.0)], rank=1, world_size=2)
    evaluator.evaluate_pending()
    assert judged(store) == 2


def test_steps_that_never_came_are_waited_for_and_then_left_out(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    send(store, [step(1), step(4)], clock.time)
    evaluator.evaluate_pending()
    assert judged(store) == 1
    clock.time += 31
    evaluator.evaluate_pending()
    assert curves(store, "r")["step"] == [1, 4]


def test_a_late_record_is_evaluated_as_if_it_had_arrived_in_time(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    for rank in (0, 1):
        send(store, map(step, range(1, 6)), rank=rank, world_size=2, run="in-time")
    send(store, map(step, range(1, 6)), clock.time, rank=0, world_size=2)
    clock.time += 31
    evaluator.evaluate_pending()
    assert judged(store) == 5 and evaluation(store, "r") != evaluation(store, "in-time")
    send(store, map(step, range(1, 6)), clock.time, rank=1, world_size=2)
    evaluator.evaluate_pending()
    assert evaluation(store, "r") == evaluation(store, "in-time")
    assert curves(store, "r") == curves(store, "in-time")
    assert get_run(store, "r").tokens == get_run(store, "in-time").tokens  # type: ignore[union-attr]


def test_another_evaluator_continues_where_the_first_stopped(store: Store) -> None:
    first, second = Evaluator(store), Evaluator(store)
    for number in range(1, 9):
        send(store, [step(number)])
        (first if number % 2 else second).evaluate_pending()
    (finding,) = evaluation(store, "r").findings
    assert judged(store) == 8 and (finding.first_step, finding.steps) == (1, 8)


def test_a_run_that_another_evaluator_restarted_is_not_evaluated_from_memory(store: Store) -> None:
    clock = Clock()
    first, second = Evaluator(store, now=clock), Evaluator(store, now=clock)
    for rank in (0, 1):
        send(store, map(step, range(1, 4)), rank=rank, world_size=2, run="in-time")
    send(store, [step(1)], clock.time, rank=0, world_size=2)
    clock.time += 31
    first.evaluate_pending()
    send(store, [step(1)], clock.time, rank=1, world_size=2)
    second.evaluate_pending()
    for rank in (0, 1):
        send(store, [step(2), step(3)], clock.time, rank=rank, world_size=2)
    first.evaluate_pending()
    assert judged(store) == 3
    assert evaluation(store, "r") == evaluation(store, "in-time")


def test_an_evaluation_of_an_old_state_is_not_stored(store: Store) -> None:
    send(store, [step(1), step(2)])
    old = run_status(store, "r")
    evaluate_pending(store)
    nothing = EvaluationUpdate(
        {}, [], EvaluationResult("balanced", [], [], {}), {0: 0}, 0, 0, None, True, set()
    )
    with pytest.raises(EvaluationConflict):
        commit(store, old, nothing, None, "")
    assert evaluation(store, "r").verdict == "broken" and judged(store) == 2


def test_a_run_with_a_new_description_is_evaluated_again(store: Store) -> None:
    evaluator = Evaluator(store)
    send(store, [step(1), step(2)])
    evaluator.evaluate_pending()
    assert evaluation(store, "r").verdict == "broken"
    send(store, [step(3)], contract="sequence")
    evaluator.evaluate_pending()
    anew = evaluation(store, "r")
    send(store, [step(1), step(2), step(3)], contract="sequence", run="from-the-start")
    evaluator.evaluate_pending()
    assert anew == evaluation(store, "from-the-start") and anew.verdict != "broken"


def test_more_steps_than_fit_in_memory_are_evaluated_in_several_passes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradledger_monitor.store.evaluation.pending.RECORDS_AT_ONCE", 10)
    for rank, together in enumerate((1, 7, 100)):
        for first in range(1, 41, together):
            some = range(first, min(first + together, 41))
            send(store, map(step, some), rank=rank, world_size=3)
    evaluate_pending(store)
    assert judged(store) == 40
    assert evaluation(store, "r").findings[0].steps == 40


def test_two_optimizers_are_evaluated_separately(store: Store) -> None:
    send(store, [step(1), step(1, 1), step(2), step(2, 1)], optimizers=["SGD", "Adam"])
    evaluate_pending(store)
    assert curves(store, "r")["step"] == [1, 2] and curves(store, "r", Span(1))["step"] == [1, 2]
    assert {finding.optimizer for finding in evaluation(store, "r").findings} == {0, 1}


def test_a_run_that_cannot_be_evaluated_does_not_stop_the_others(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    send(store, [step(1)], run="spoiled")
    send(store, [step(1)], run="sound")
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE chunks SET records = 'rubbish' WHERE run = 1")
    Evaluator(store).evaluate_pending()
    assert judged(store, "sound") == 1
    assert "spoiled" in caplog.text
