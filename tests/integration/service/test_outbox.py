"""The outbox on both databases: one process at a time sends a message, in order."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from gradledger_monitor.alerts import payload
from gradledger_monitor.alerts.assembly import Alerts
from gradledger_monitor.alerts.enqueue import Composer, enqueue_due
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.ingest import decode
from gradledger_monitor.model.findings import Acknowledgement
from gradledger_monitor.store.alerts import acknowledgements, channels, earlier_findings, outbox
from gradledger_monitor.store.alerts.acknowledgements import acknowledge
from gradledger_monitor.store.alerts.earlier_findings import SkippedFinding
from gradledger_monitor.store.alerts.outbox import ClaimedAlert, DeliveryResult
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps.ingest import store_batch
from helpers.batches import batch, step
from helpers.sending import evaluate_pending

RULE = "reduction.token_weights_unequal"
LATER = 4e9  # a Unix time in the future
LEASE = 30.0
DOCUMENT = payload.test_document("http://here", 1.0)
FAILED, DELIVERED = DeliveryResult("failed", "no"), DeliveryResult("delivered")


@contextmanager
def processes(store: Store, count: int) -> Iterator[list[Store]]:
    """Separate connections to the same database."""
    others = [Store(store.engine.url.render_as_string(hide_password=False)) for _ in range(count)]
    yield others
    for other in others:
        other.close()


def put(store: Store, channel: str = "c", run: int | None = None, now: float = 0.0) -> str:
    """Add a message to the outbox."""
    with store.writing() as connection:
        return outbox.enqueue(connection, run, channel, DOCUMENT, now)


def claim(store: Store, now: float, limit: int = 99) -> list[ClaimedAlert]:
    """The messages that are due."""
    return outbox.claim(store, now, LEASE, limit)


def finish(
    store: Store, one: ClaimedAlert, result: DeliveryResult, now: float, again: Any = None
) -> None:
    """Record a result, and when to retry."""
    outbox.record_result(store, one, result, now, lambda _: again)


def evaluated_runs(store: Store, *names: str) -> list[int]:
    """Store runs with an error; return their keys."""
    for name in names:
        store_batch(store, decode.read(batch(name, [step(1)])), 1.0)
    evaluate_pending(store, rank_timeout=0)
    return list(range(1, len(names) + 1))


def composer(store: Store) -> Composer:
    """What a service composes messages with, for one channel."""
    channel = {"name": "c", "url": "https://example.org"}
    return Alerts(Settings(alert_channels=[channel]), "http://127.0.0.1", store).composer()  # type: ignore[list-item]


def test_each_message_is_claimed_by_one_process(store: Store) -> None:
    names = {put(store) for _ in range(60)}
    with processes(store, 4) as others, ThreadPoolExecutor(4) as pool:
        taken = [one.id for _ in range(8) for got in pool.map(lambda s: claim(s, 1, 3), others)
                 for one in got]  # fmt: skip
    assert len(taken) == len(set(taken)) and set(taken) == names


def test_each_run_is_enqueued_by_one_process(store: Store) -> None:
    evaluated_runs(store, *(f"r{number}" for number in range(12)))
    composed = composer(store)
    with processes(store, 4) as others, ThreadPoolExecutor(4) as pool:
        count = sum(pool.map(lambda s: enqueue_due(s, composed, LATER), others))
    runs = [one.document["data"]["run"]["id"] for one in outbox.list_alerts(store)]
    assert count == 12 and sorted(runs) == sorted(f"r{number}" for number in range(12))


def test_an_expired_claim_passes_to_another_process_under_the_same_id(store: Store) -> None:
    put(store)
    (dead,) = claim(store, 1)
    assert claim(store, 1 + LEASE - 0.1) == []
    (alive,) = claim(store, 1 + LEASE)
    assert (alive.id, alive.attempt) == (dead.id, 2)
    finish(store, dead, FAILED, 32)  # it was not dead, only slow: its result does not count
    finish(store, alive, DELIVERED, 33)
    (sent,) = outbox.list_alerts(store)
    assert (sent.state, [one.outcome for one in sent.attempts]) == (
        "delivered",
        ["failed", "delivered"],
    )


def test_messages_of_a_run_to_a_channel_are_sent_in_order(store: Store) -> None:
    first, second = evaluated_runs(store, "a", "b")
    names = [put(store, run=first) for _ in range(2)] + [put(store, run=second)]
    assert [one.id for one in claim(store, 1)] == [names[0], names[2]]
    assert claim(store, 2) == []
    put(store, "another", run=first)
    assert [one.channel for one in claim(store, 3)] == ["another"]


def test_an_attempt_made_early_is_not_counted(store: Store) -> None:
    (run,) = evaluated_runs(store, "a")
    put(store, run=run)
    (one,) = claim(store, 1)
    finish(store, one, FAILED, 2, again=1_000.0)
    put(store, run=run, now=10)  # brings the first forward
    (one,) = claim(store, 10)
    assert (one.failures, one.planned, one.attempt) == (1, 1_000.0, 2)
    finish(store, one, FAILED, 11, again=LATER)
    assert claim(store, 999) == []
    (one,) = claim(store, 1_000)
    assert one.failures == 1


def test_a_delivery_triggers_the_waiting_messages_of_its_channel(store: Store) -> None:
    put(store)
    (one,) = claim(store, 1)
    finish(store, one, FAILED, 2, again=1_000.0)
    put(store, now=3)
    (other,) = claim(store, 3)
    finish(store, other, DELIVERED, 4)
    assert [again.id for again in claim(store, 4)] == [one.id]


def test_a_channel_fails_while_a_message_waits_for_another_attempt(store: Store) -> None:
    put(store)
    assert outbox.failing(store) == {}
    (one,) = claim(store, 1)
    finish(store, one, FAILED, 2, again=5.0)
    assert outbox.failing(store) == {"c": 1}
    (again,) = claim(store, 6)
    finish(store, again, DELIVERED, 7)
    assert outbox.failing(store) == {}


def test_retry_after_holds_all_messages_of_the_channel(store: Store) -> None:
    put(store)
    put(store, "another")
    one, other = claim(store, 1)
    finish(store, other, DELIVERED, 2)
    finish(store, one, DeliveryResult("failed", "busy", 429, retry_after=100.0), 2, again=5.0)
    put(store, now=3)
    assert claim(store, 101) == []
    assert len(claim(store, 102)) == 2


def test_the_last_failure_makes_a_message_dead_and_a_replay_restarts_it(store: Store) -> None:
    name = put(store)
    finish(store, claim(store, 1)[0], FAILED, 2)
    assert [one.id for one in outbox.list_alerts(store, state="dead")] == [name]
    assert outbox.replay(store, name, 3) and not outbox.replay(store, "msg_none", 3)
    (one,) = claim(store, 3)
    assert (one.id, one.failures, one.attempt) == (name, 0, 2)
    assert not outbox.replay(store, name, 4)  # it is being sent
    finish(store, one, DELIVERED, 5)
    assert outbox.counts(store) == {("c", "delivered"): 1}
    assert outbox.prune(store, 5) == 0 and outbox.prune(store, 6) == 1
    assert outbox.list_alerts(store) == []


@pytest.mark.parametrize("again", [False, True])
def test_a_restart_enqueues_nothing_again(store: Store, again: bool) -> None:
    evaluated_runs(store, "r")
    assert enqueue_due(store, composer(store), LATER) == 1
    if again:
        evaluate_pending(store, rank_timeout=0)
    assert enqueue_due(store, composer(store), LATER) == 0


def test_open_findings_are_skipped_on_a_new_channel_until_they_are_requested(store: Store) -> None:
    evaluated_runs(store, "one", "two")
    now = 100.0
    channels.register(store, ["c"], now)
    channels.register(store, ["c"], now + 1)  # a second start of the service
    assert enqueue_due(store, composer(store), now + 2) == 0
    assert [finding.run for finding in sorted_by_run(store, now)] == ["one", "two"]
    acknowledge(store, "two", RULE, Acknowledgement("known", None, now))
    assert [finding.run for finding in sorted_by_run(store, now)] == ["one"]
    assert [(one.run, one.until) for one in acknowledgements.current(store, now)] == [("two", None)]
    earlier_findings.unskip(store, "c", now + 3)
    assert enqueue_due(store, composer(store), now + 4) == 1
    (message,) = claim(store, now + 5)
    assert message.document["data"]["run"]["id"] == "one"
    assert sorted_by_run(store, now) == []


def sorted_by_run(store: Store, now: float) -> list[SkippedFinding]:
    """The findings that were not sent to a new channel."""
    return sorted(earlier_findings.skipped(store, now), key=lambda finding: finding.run)


def test_a_snooze_is_listed_until_it_ends(store: Store) -> None:
    evaluated_runs(store, "one")
    acknowledge(store, "one", RULE, Acknowledgement("later", "Ada", 1.0, until=50.0))
    (silence,) = acknowledgements.current(store, 49.0)
    assert (silence.name, silence.by, silence.until) == ("a run", "Ada", 50.0)
    assert acknowledgements.current(store, 50.0) == []
