"""After a crash, each acknowledged record is stored once, and its evaluation is the same."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

import httpx2

from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import step_records
from gradledger_monitor.store.steps.curves import curves
from helpers import http
from helpers.batches import EndRecord, EvalRecord, batch, eventually, step
from helpers.patience import HANGS
from helpers.service import Service, running_service, start_service

KILLS = int(os.environ.get("GRADLEDGER_TEST_KILLS", "4"))  # 50 take some minutes
RANKS = 4
STEPS = 75 * KILLS
PER_BATCH = 5


class Sender(threading.Thread):
    """Sends a run in order, each batch again until it is acknowledged, as the hooks do."""

    def __init__(self, url: str, rank: int, listening: threading.Event) -> None:
        super().__init__()
        self.url, self.rank, self._listening = url, rank, listening
        self.attempts = self.duplicates = self.acknowledged = 0

    def run(self) -> None:
        for first in range(1, STEPS + 1, PER_BATCH):
            records = [step(number, sync="averaged") for number in range(first, first + PER_BATCH)]
            self._deliver(batch("crashing", records, rank=self.rank, world_size=RANKS))
        self._deliver(batch("crashing", [EndRecord(9.0)], rank=self.rank, world_size=RANKS))

    def _deliver(self, body: bytes) -> None:
        headers = {"Content-Type": "application/x-ndjson"}
        while True:
            self.attempts += 1
            try:
                url = f"{self.url}/api/v1/records"
                response = http.post(url, content=body, headers=headers)
            except httpx2.TransportError:
                self._listening.wait(HANGS)
                continue
            assert response.status_code == 200, response.text
            self.duplicates += response.json()["duplicates"]
            self.acknowledged += PER_BATCH
            return


def sends_more(sender: Sender, batches: int) -> bool:
    """Whether the sender gets more batches acknowledged before it ends."""
    enough = sender.acknowledged + PER_BATCH * batches
    assert eventually(HANGS, lambda: sender.acknowledged >= enough or not sender.is_alive())
    return sender.acknowledged >= enough


def test_no_record_is_lost_or_doubled_when_the_service_is_killed_repeatedly(
    database: str,
) -> None:
    service, listening = start_service(database), threading.Event()
    senders = [Sender(service.url, rank, listening) for rank in range(RANKS)]
    for sender in senders:
        sender.start()
    chance = random.Random(1)
    kills = 0
    while kills < KILLS and sends_more(senders[0], chance.randint(4, 6)):
        listening.clear()
        service.kill()
        kills += 1
        service = start_service(database, service.port)
        listening.set()
    for sender in senders:
        sender.join()
    try:
        assert kills == KILLS
        assert sum(sender.attempts for sender in senders) > RANKS * STEPS // PER_BATCH
        _check_whole(service, database)
    finally:
        service.stop()


def evaluated(service: Service, run: str, steps: int) -> Callable[[], bool]:
    """Checks whether this many steps of a run are evaluated."""
    return lambda: bool(service.get(f"/runs/{run}").json()["steps"] == steps)


def _check_whole(service: Service, database: str) -> None:
    assert eventually(HANGS, evaluated(service, "crashing", STEPS))
    store = Store(database)
    for number in range(1, STEPS + 1):
        records = step_records(store, "crashing", 0, number)
        assert sorted(records) == list(range(RANKS))
        assert all(record.time == 1_000.0 + number for record in records.values())
    assert sum(curves(store, "crashing")["steps"]) == STEPS
    store.close()
    run = service.get("/runs/crashing").json()
    assert run["ended"] and run["tokens"] == STEPS * RANKS * 40
    finding = service.get("/runs/crashing/verdict").json()["findings"][0]
    assert (finding["rule"], finding["last_step"]) == (
        "reduction.token_weights_unequal",
        STEPS,
    )


def test_a_batch_sent_twice_changes_nothing(database: str) -> None:
    body = batch("again", [step(1), step(2), EvalRecord(2, 5.0, {"loss": 1.5}), EndRecord(9.0)])
    with running_service(database) as service:
        assert service.post(body).json() == {"stored": 4, "duplicates": 0}
        assert eventually(HANGS, evaluated(service, "again", 2))
        before = service.get("/runs/again/verdict").json()
        assert service.post(body).json() == {"stored": 0, "duplicates": 4}
        assert service.post(body + body).json() == {"stored": 0, "duplicates": 8}
        for later in ("one", "two"):  # what the duplicates caused is evaluated before the second
            service.post(batch(later, [step(1)]))
            assert eventually(HANGS, evaluated(service, later, 1))
        assert service.get("/runs/again/verdict").json() == before


def test_after_a_restart_findings_are_the_same_and_the_evaluation_continues(database: str) -> None:
    with running_service(database) as service:
        service.post(batch("long", map(step, range(1, 11))))
        assert eventually(HANGS, evaluated(service, "long", 10))
        before = service.get("/runs/long/verdict").json()
        assert before["verdict"] == "broken" and before["findings"]
    with running_service(database) as service:
        assert service.get("/runs/long/verdict").json() == before
        service.post(batch("long", map(step, range(11, 21))))
        assert eventually(HANGS, evaluated(service, "long", 20))
        after = service.get("/runs/long/verdict").json()["findings"][0]
        assert (after["first_step"], after["last_step"], after["steps"]) == (1, 20, 20)


def test_stored_records_are_evaluated_after_a_crash(
    database: str,
) -> None:
    service = start_service(database)
    service.post(batch("late", map(step, range(1, 400))))
    service.kill()
    with running_service(database) as again:
        assert eventually(HANGS, evaluated(again, "late", 399))
