"""A run is reported as stalled while it is, by the clock of the service."""

from __future__ import annotations

import time

import pytest

from gradledger.records import HeartbeatRecord, Record
from gradledger_monitor.alerts.assembly import Alerts
from gradledger_monitor.alerts.enqueue import enqueue_due
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import evaluation, get_run
from gradledger_monitor.store.steps.curves import curves
from gradledger_monitor.workers.evaluator import ABSENCE_TIMEOUT, Evaluator
from helpers.batches import EndRecord, fair_step
from helpers.sending import Clock, judged, send

CHANNEL = {"name": "c", "url": "https://example.org"}


def live(
    store: Store, evaluator: Evaluator, clock: Clock, first: int, last: int, rank: int = 0
) -> None:
    """Steps that arrive as they end, one per second."""
    for number in range(first, last + 1):
        clock.time = 1_000.0 + number
        send(store, [fair_step(number)], clock.time, rank=rank)
    evaluator.evaluate_pending()


def stalls(store: Store) -> list[Finding]:
    """The findings of a stalled run."""
    return [f for f in evaluation(store, "r").findings if f.rule == "run.stalled"]


def test_a_stall_is_reported_while_it_is_ongoing(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    live(store, evaluator, clock, 1, 20)
    clock.time += 59
    assert evaluator.evaluate_pending() == [] and not stalls(store)
    clock.time += 2
    assert evaluator.evaluate_pending() == ["r"]
    (finding,) = stalls(store)
    assert finding.evidence == {"seconds": 61.0, "usual_seconds": 1.0, "silent_ranks": [0]}
    assert finding.summary.startswith("No step has ended for 61 s; the median gap is 1.00 s.")
    assert "No heartbeat from rank 0" in finding.summary
    assert (finding.first_step, finding.steps, finding.lifecycle) == (20, 1, "new")
    row = get_run(store, "r")
    assert row is not None and row.verdict == "suspect" and row.primary == finding.title
    clock.time += 1_000
    assert evaluator.evaluate_pending() == []


def test_the_spool_of_a_dead_process_that_another_one_sends_is_no_heartbeat(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    live(store, evaluator, clock, 1, 20)
    clock.time += 55
    send(store, [fair_step(20)], clock.time)
    clock.time += 10
    evaluator.evaluate_pending()
    (finding,) = stalls(store)
    assert "No heartbeat from rank 0" in finding.summary


def test_an_attempt_does_not_stall_after_which_its_launcher_started_the_next(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    for restarts, run in enumerate(("r", "next")):
        launcher = {"torchrun launch": "1f2e", "torchrun restarts": str(restarts)}
        for number in range(1, 21):
            clock.time += 1
            fields = {"environment": launcher, "started": 9_000.0 + restarts}
            record = fair_step(number)
            record.time = clock.time
            send(store, [record], clock.time, run=run, **fields)
            evaluator.evaluate_pending()
    clock.time += 1_000
    evaluator.evaluate_pending()
    assert judged(store) == 20 and not stalls(store)
    # the last attempt has none after it
    assert [f.rule for f in evaluation(store, "next").findings] == ["run.stalled"]


def test_a_stall_is_withdrawn_when_the_next_attempt_sends_its_first_record(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)

    def attempt(run: str, restarts: int, first: int, last: int) -> None:
        launcher = {"torchrun launch": "1f2e", "torchrun restarts": str(restarts)}
        for number in range(first, last + 1):
            clock.time += 1
            record = fair_step(number)
            record.time = clock.time
            fields = {"environment": launcher, "started": 9_000.0 + restarts, "rank": 0}
            send(store, [record], clock.time, run=run, **fields)
            evaluator.evaluate_pending()

    attempt("r", 0, 1, 20)
    clock.time += 100
    evaluator.evaluate_pending()
    attempt("r", 0, 21, 40)
    evaluator.save_snapshot("r")
    (first,) = stalls(store)
    clock.time += 100
    evaluator.evaluate_pending()
    assert [(f.lifecycle, f.last_step) for f in stalls(store)] == [("ongoing", 40)]
    # the next attempt loads for longer than that; a run of another job changes nothing
    send(store, [fair_step(1)], clock.time, run="other")
    evaluator.evaluate_pending()
    assert [f.lifecycle for f in stalls(store)] == ["ongoing"]
    attempt("next", 1, 1, 1)
    assert stalls(store) == [first] and judged(store) == 40
    clock.time += 1_000
    evaluator.evaluate_pending()
    Evaluator(store, now=clock).evaluate_pending()
    assert stalls(store) == [first]


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_alert_of_an_attempt_is_not_repeated_once_the_next_has_begun(
    store: Store, goes_on: bool
) -> None:
    """Also before the earlier one is evaluated again."""
    clock = Clock(time.time())
    evaluator = Evaluator(store, now=clock)
    for number in range(1, 21):
        clock.time += 1
        record = fair_step(number)
        record.time = clock.time
        launcher = {"torchrun launch": "1f2e", "torchrun restarts": "0"}
        send(store, [record], clock.time, environment=launcher, started=clock.time - number)
        evaluator.evaluate_pending()
    clock.time += 100
    evaluator.evaluate_pending()
    settings = Settings.model_validate({"alert_channels": [CHANNEL]})
    composer = Alerts(settings, "http://127.0.0.1", store).composer()
    # the second time, after the wait for others of its group
    sent = [enqueue_due(store, composer, clock.time + seconds) for seconds in (0.0, 600.0)]
    assert stalls(store) and sent == [0, 1]
    if goes_on:
        launcher = {"torchrun launch": "1f2e", "torchrun restarts": "1"}
        fields = {"environment": launcher, "started": clock.time}
        send(store, [fair_step(1)], clock.time, run="next", **fields)
    assert stalls(store)
    assert enqueue_due(store, composer, clock.time + 5 * 3_600.0) == (0 if goes_on else 1)


def test_a_hung_training_stalls_beside_which_the_same_worker_starts_another(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    launcher = {"torchrun launch": "1f2e", "torchrun restarts": "0"}
    for run, offset in (("r", 0.0), ("beside", 1.0)):
        for number in range(1, 21):
            clock.time += 1
            record = fair_step(number)
            record.time = clock.time
            fields = {"environment": launcher, "started": 9_000.0 + offset}
            send(store, [record], clock.time, run=run, **fields)
            evaluator.evaluate_pending()
    clock.time += 1_000
    evaluator.evaluate_pending()
    assert judged(store) == 20 and stalls(store)


def test_a_run_does_not_stall_whose_ranks_have_ended_but_for_one_that_never_sent(
    store: Store,
) -> None:
    """Only the first rank steps, and the others take its weights."""
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    for number in range(1, 21):
        clock.time = 1_000.0 + number
        send(store, [fair_step(number)], clock.time, world_size=2)
    clock.time += ABSENCE_TIMEOUT
    evaluator.evaluate_pending()
    send(store, [EndRecord(clock.time, [20])], clock.time, world_size=2)
    clock.time += 1_000
    evaluator.evaluate_pending()
    assert judged(store) == 20 and not stalls(store)


def test_a_process_that_is_alive_is_distinguished_from_one_that_is_gone(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    live(store, evaluator, clock, 1, 20)
    for _ in range(6):
        clock.time += 10
        heartbeat: list[Record] = [HeartbeatRecord(clock.time, 10.0, 7)]
        send(store, heartbeat, clock.time)
        evaluator.evaluate_pending()
    clock.time += 1
    evaluator.evaluate_pending()
    (finding,) = stalls(store)
    assert finding.evidence["silent_ranks"] == []
    assert "All ranks still send heartbeats, and ran up to 7 backwards" in finding.summary


def test_a_stall_is_resolved_when_steps_arrive_again(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    live(store, evaluator, clock, 1, 20)
    clock.time += 61
    evaluator.evaluate_pending()
    later = [fair_step(number) for number in range(21, 60)]
    for record in later:
        record.time += 100.0
        send(store, [record], record.time)
    clock.time = later[-1].time
    evaluator.evaluate_pending()
    (finding,) = stalls(store)
    assert (finding.first_step, finding.last_step, finding.lifecycle) == (20, 21, "resolved")
    assert evaluation(store, "r").verdict == "balanced"


def test_evaluating_again_gives_the_same_result(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    live(store, evaluator, clock, 1, 20)
    clock.time += 61
    evaluator.evaluate_pending()
    live(store, evaluator, clock, 21, 30)
    before = evaluation(store, "r"), curves(store, "r")
    assert stalls(store)
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE runs SET rewind = true, revision = revision + 1")
    Evaluator(store, now=clock).evaluate_pending()
    assert (evaluation(store, "r"), curves(store, "r")) == before


def test_runs_that_ended_or_came_from_a_spool_are_not_stalled(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    live(store, evaluator, clock, 1, 20)
    send(store, [EndRecord(1_021.0)], clock.time)
    send(store, map(fair_step, range(1, 21)), 50_000.0, run="spooled")
    evaluator.evaluate_pending()
    clock.time = 60_000.0
    assert evaluator.evaluate_pending() == []
    assert judged(store, "spooled") == 20 and not stalls(store)


def test_a_clock_that_is_set_back_does_not_make_a_step_wait_forever(store: Store) -> None:
    clock = Clock(10_000.0)
    send(store, [fair_step(1)], clock.time, rank=1, world_size=2)
    send(store, [fair_step(1)], clock.time, rank=0, world_size=2)
    evaluator = Evaluator(store, rank_timeout=30, now=clock)
    evaluator.evaluate_pending()
    send(store, [fair_step(2)], clock.time, rank=0, world_size=2)
    clock.time = 5_000.0
    evaluator.evaluate_pending()
    clock.time += 29
    evaluator.evaluate_pending()
    assert judged(store) == 1
    clock.time += 2
    evaluator.evaluate_pending()
    assert judged(store) == 2


def test_a_run_that_skips_steps_has_a_longer_timeout(store: Store) -> None:
    clock = Clock()
    evaluator = Evaluator(store, now=clock)
    live(store, evaluator, clock, 1, 19)
    clock.time += 1
    skipping = fair_step(20)
    skipping.next = 257
    send(store, [skipping], clock.time)
    evaluator.evaluate_pending()
    clock.time += 299
    assert evaluator.evaluate_pending() == [] and not stalls(store)
    clock.time += 2
    assert evaluator.evaluate_pending() == ["r"] and stalls(store)
