"""The outbox, on both databases: each message is one process's, in order, and nobody's for ever."""

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
from gradledger_monitor.store.alerts import outbox
from gradledger_monitor.store.alerts.outbox import ClaimedAlert, DeliveryResult
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.workers.evaluator import evaluate_pending
from helpers.batches import batch, step

LATER = 4e9  # this century
LEASE = 30.0
SAID = payload.test("http://here", 1.0)
FAILED, DELIVERED = DeliveryResult("failed", "no"), DeliveryResult("delivered")


@contextmanager
def processes(store: Store, count: int) -> Iterator[list[Store]]:
    """As many connections of their own to the same database."""
    others = [Store(store.engine.url.render_as_string(hide_password=False)) for _ in range(count)]
    yield others
    for other in others:
        other.close()


def put(store: Store, channel: str = "c", run: int | None = None, now: float = 0.0) -> str:
    """Have a message sent."""
    with store.writing() as connection:
        return outbox.enqueue(connection, run, channel, SAID, now)


def claim(store: Store, now: float, limit: int = 99) -> list[ClaimedAlert]:
    """What is due."""
    return outbox.claim(store, now, LEASE, limit)


def finish(
    store: Store, one: ClaimedAlert, result: DeliveryResult, now: float, again: Any = None
) -> None:
    """Write down what became of it, and when to try again."""
    outbox.record_result(store, one, result, now, lambda _: again)


def judged(store: Store, *names: str) -> list[int]:
    """Runs with an error, and their keys."""
    for name in names:
        store_batch(store, decode.read(batch(name, [step(1)])), 1.0)
    evaluate_pending(store, rank_timeout=0)
    return list(range(1, len(names) + 1))


def voice(store: Store) -> Composer:
    """As a service would speak, to one channel."""
    channel = {"name": "c", "url": "https://example.org"}
    return Alerts(Settings(alert_channels=[channel]), "http://127.0.0.1", store).composer()  # type: ignore[list-item]


def test_of_several_processes_one_sends_each_message(store: Store) -> None:
    names = {put(store) for _ in range(60)}
    with processes(store, 4) as others, ThreadPoolExecutor(4) as pool:
        taken = [one.id for _ in range(8) for got in pool.map(lambda s: claim(s, 1, 3), others)
                 for one in got]  # fmt: skip
    assert len(taken) == len(set(taken)) and set(taken) == names


def test_of_several_processes_one_says_each_thing(store: Store) -> None:
    judged(store, *(f"r{number}" for number in range(12)))
    speaks = voice(store)
    with processes(store, 4) as others, ThreadPoolExecutor(4) as pool:
        said = sum(pool.map(lambda s: enqueue_due(s, speaks, LATER), others))
    told = [one.document["data"]["run"]["id"] for one in outbox.list_alerts(store)]
    assert said == 12 and sorted(told) == sorted(f"r{number}" for number in range(12))


def test_whoever_dies_with_a_message_leaves_it_to_the_next_under_the_same_id(store: Store) -> None:
    put(store)
    (dead,) = claim(store, 1)
    assert claim(store, 1 + LEASE - 0.1) == []
    (alive,) = claim(store, 1 + LEASE)
    assert (alive.id, alive.attempt) == (dead.id, 2)
    finish(store, dead, FAILED, 32)  # it was not dead, only slow: nobody listens any more
    finish(store, alive, DELIVERED, 33)
    (sent,) = outbox.list_alerts(store)
    assert (sent.state, [one.outcome for one in sent.attempts]) == (
        "delivered",
        ["failed", "delivered"],
    )


def test_messages_of_one_run_to_one_channel_go_in_order(store: Store) -> None:
    first, second = judged(store, "a", "b")
    names = [put(store, run=first) for _ in range(2)] + [put(store, run=second)]
    assert [one.id for one in claim(store, 1)] == [names[0], names[2]]
    assert claim(store, 2) == []
    put(store, "another", run=first)
    assert [one.channel for one in claim(store, 3)] == ["another"]


def test_an_attempt_made_early_is_not_counted(store: Store) -> None:
    (run,) = judged(store, "a")
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


def test_what_arrives_opens_the_door_for_what_waits(store: Store) -> None:
    put(store)
    (one,) = claim(store, 1)
    finish(store, one, FAILED, 2, again=1_000.0)
    put(store, now=3)
    (other,) = claim(store, 3)
    finish(store, other, DELIVERED, 4)
    assert [again.id for again in claim(store, 4)] == [one.id]


def test_a_receiver_that_asks_for_time_gets_it_for_all_messages(store: Store) -> None:
    put(store)
    put(store, "another")
    one, other = claim(store, 1)
    finish(store, other, DELIVERED, 2)
    finish(store, one, DeliveryResult("failed", "busy", 429, retry_after=100.0), 2, again=5.0)
    put(store, now=3)
    assert claim(store, 101) == []
    assert len(claim(store, 102)) == 2


def test_the_last_attempt_leaves_it_dead_and_a_replay_begins_anew(store: Store) -> None:
    name = put(store)
    finish(store, claim(store, 1)[0], FAILED, 2)
    assert [one.id for one in outbox.list_alerts(store, state="dead")] == [name]
    assert outbox.replay(store, name, 3) and not outbox.replay(store, "msg_none", 3)
    (one,) = claim(store, 3)
    assert (one.id, one.failures, one.attempt) == (name, 0, 2)
    assert not outbox.replay(store, name, 4)  # it is on its way
    finish(store, one, DELIVERED, 5)
    assert outbox.counts(store) == {("c", "delivered"): 1}
    assert outbox.prune(store, 5) == 0 and outbox.prune(store, 6) == 1
    assert outbox.list_alerts(store) == []


@pytest.mark.parametrize("again", [False, True])
def test_what_was_said_is_not_said_again_by_a_restart(store: Store, again: bool) -> None:
    judged(store, "r")
    assert enqueue_due(store, voice(store), LATER) == 1
    if again:
        evaluate_pending(store, rank_timeout=0)
    assert enqueue_due(store, voice(store), LATER) == 0
