"""Three services on one Postgres: each run is judged by one, and told of once, whoever dies."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from gradledger_monitor.store.evaluation.claims import SPACE
from helpers import http
from helpers.batches import EndRecord, batch, eventually, fair_step, step
from helpers.postgres import Postgres
from helpers.receiver import Receiver, receiving
from helpers.service import Service, running_service
from integration.alerts.conftest import sending_to

RUNS = [f"run-{n}" for n in range(9)]
STEPS = 160
PER_BATCH = 8

# who holds the claim on which run: process id of the service, from its name in the database
_HOLDERS = """
SELECT r.id, a.application_name FROM pg_locks l
JOIN pg_stat_activity a ON a.pid = l.pid
JOIN runs r ON r.key = ((l.classid::bigint << 32) | l.objid::bigint) - %s
WHERE l.locktype = 'advisory' AND l.granted
"""


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    """An empty database."""
    made = postgres.create()
    yield made
    postgres.drop(made)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """Whom the services alert."""
    with receiving(tmp_path / "receiver") as running:
        yield running


@contextmanager
def three(url: str, evaluation_interval: str, **settings: str) -> Iterator[list[Service]]:
    """Three services; their judges look by themselves every so many seconds."""
    with ExitStack() as stack:
        settings["evaluation_interval"] = evaluation_interval
        start = [running_service(url, 0, **settings) for _ in range(3)]
        yield [stack.enter_context(service) for service in start]


@pytest.fixture
def services(url: str, receiver: Receiver) -> Iterator[list[Service]]:
    """Three services on the database, each of which may alert."""
    with three(url, "2", **sending_to(receiver)) as started:
        yield started


class Claims(threading.Thread):
    """Looks again and again who judges what."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url.replace("+psycopg", "", 1)
        self._enough = threading.Event()
        self.seen: dict[str, list[int]] = {}  # run -> processes, each time one else has it
        self.together: list[tuple[str, set[int]]] = []  # two at one moment: must stay empty

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._enough.wait(0.01):
                self._note(connection.execute(_HOLDERS, [SPACE]).fetchall())

    def _note(self, rows: list[Any]) -> None:
        now: dict[str, set[int]] = {}
        for run, name in rows:
            now.setdefault(run, set()).add(int(re.findall(r"\d+", name)[0]))
        self.together += [(run, held) for run, held in now.items() if len(held) > 1]
        for run, held in now.items():
            known = self.seen.setdefault(run, [])
            known += [process for process in held if known[-1:] != [process]]

    def stop(self) -> None:
        """End, and wait for that."""
        self._enough.set()
        self.join()


def send(services: list[Service], run: str) -> None:
    """A run's two ranks, each batch to another service, as behind a load balancer."""
    make = step if run.endswith(("0", "5")) else fair_step
    with http.client(timeout=30) as client:
        for at in range(0, STEPS, PER_BATCH):
            records = [make(number) for number in range(at + 1, at + PER_BATCH + 1)]
            for record in records:
                record.sync = "averaged"
            for rank in (0, 1):
                body = batch(run, records, rank=rank, world_size=2)
                deliver(client, services, at // PER_BATCH + rank, body)
        for rank in (0, 1):
            deliver(client, services, rank, batch(run, [EndRecord(9.0)], rank=rank, world_size=2))


def deliver(client: httpx2.Client, services: list[Service], first: int, body: bytes) -> None:
    """To whichever takes it, until one did."""
    headers = {"Content-Type": "application/x-ndjson"}
    for attempt in range(100):
        url = f"{services[(first + attempt) % len(services)].url}/api/v1/records"
        try:
            if client.post(url, content=body, headers=headers).status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.02)
    raise AssertionError("no service took the batch")


def answers(service: Service) -> dict[str, Any]:
    """What is said of every run; the numbers of steps too."""
    return {run: service.get(f"/runs/{run}/verdict").json() for run in RUNS}


def all_judged(service: Service) -> bool:
    """Whether all steps of all runs were judged."""
    found = {run["id"]: run["steps"] for run in service.get("/runs").json()["runs"]}
    return all(found.get(run) == STEPS for run in RUNS)


def stream(services: list[Service]) -> list[threading.Thread]:
    """Send all runs at once."""
    threads = [threading.Thread(target=send, args=(services, run)) for run in RUNS]
    for thread in threads:
        thread.start()
    return threads


def test_each_run_is_judged_by_one_and_a_death_changes_nothing(
    url: str, services: list[Service], postgres: Postgres, receiver: Receiver
) -> None:
    claims = Claims(url)
    claims.start()
    senders = stream(services)
    assert eventually(30, lambda: len({c for held in claims.seen.values() for c in held}) == 3)
    victim = services[1]
    mine = {run for run, held in list(claims.seen.items()) if held[-1] == victim.process.pid}
    victim.kill()
    for sender in senders:
        sender.join()
    left = [services[0], services[2]]
    assert eventually(60, lambda: all_judged(left[0])), left[0].get("/runs").json()
    claims.stop()
    assert not claims.together
    last = {run: held[-1] for run, held in claims.seen.items()}
    assert set(last) == set(RUNS) and mine
    assert set(last.values()) <= {service.process.pid for service in left}
    after = answers(left[0])
    assert after == answers(left[1])
    assert after == _alone(postgres)
    broken = sorted(run for run, verdict in after.items() if verdict["verdict"] == "broken")
    assert eventually(60, lambda: told_of(receiver) == broken), told_of(receiver)
    assert not eventually(3, lambda: told_of(receiver) != broken), "told once more"


def told_of(receiver: Receiver) -> list[str]:
    """The run of every finding that was told, by each message once."""
    bodies = receiver.alerts()
    return sorted(body["data"]["run"]["id"] for body in bodies for _ in body["data"]["findings"])


def _alone(postgres: Postgres) -> dict[str, Any]:
    """What one service says of the same runs."""
    made = postgres.create()
    with running_service(made) as service:
        for sender in stream([service]):
            sender.join()
        assert eventually(60, lambda: all_judged(service))
        said = answers(service)
    postgres.drop(made)
    return said


def test_a_page_of_one_service_sees_what_another_took_in(url: str) -> None:
    with three(url, evaluation_interval="600") as (first, second, third):  # only news wakes them
        first.post(batch("live", [step(1)]))
        assert eventually(60, lambda: bool(second.get("/runs/live").json().get("steps") == 1))
        page = f"{second.url}/api/v1/runs/live/events"
        with http.stream("GET", page, timeout=60) as response:
            told = (json.loads(s[6:]) for s in response.iter_lines() if s.startswith("data: "))
            assert next(told)["step"] == 1
            for number in range(2, 6):
                (first, third)[number % 2].post(batch("live", [step(number)]))
                assert next(told)["step"] == number
