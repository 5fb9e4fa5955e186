"""Three services on one Postgres: one evaluates each run and alerts once, also if one is killed."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from gradledger.records import Record
from gradledger_monitor.store.evaluation.claims import SPACE
from helpers import http
from helpers.batches import EndRecord, batch, eventually, fair_step, step
from helpers.patience import HANGS
from helpers.postgres import Postgres
from helpers.receiver import Receiver, receiving
from helpers.service import Service, running_service
from integration.alerts.conftest import messages, sending_to

RUNS = [f"run-{n}" for n in range(9)]
STEPS = 80
PER_BATCH = 8

# which process holds the claim on which run: its id is in its name in the database
_HOLDERS = """
SELECT r.id, a.application_name FROM pg_locks l
JOIN pg_stat_activity a ON a.pid = l.pid
JOIN runs r ON r.key = ((l.classid::bigint << 32) | l.objid::bigint) - %s
WHERE l.locktype = 'advisory' AND l.granted
"""


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    """An empty database."""
    created = postgres.create()
    yield created
    postgres.drop(created)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """Receives the alerts of the services."""
    with receiving(tmp_path / "receiver") as running:
        yield running


@contextmanager
def three(url: str, evaluation_interval: str, **settings: str) -> Iterator[list[Service]]:
    """Three services; their evaluators poll the database at this interval, in seconds."""
    with ExitStack() as stack:
        settings["evaluation_interval"] = evaluation_interval
        start = [running_service(url, 0, **settings) for _ in range(3)]
        yield [stack.enter_context(service) for service in start]


@pytest.fixture
def services(url: str, receiver: Receiver) -> Iterator[list[Service]]:
    """Three services on the database, each of which can send alerts."""
    with three(url, "2", **sending_to(receiver)) as started:
        yield started


class Claims(threading.Thread):
    """Reads the claims again and again."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url.replace("+psycopg", "", 1)
        self._enough = threading.Event()
        self.holder: dict[str, int] = {}  # run -> the last process that had a claim on it
        self.conflicts: list[tuple[str, set[int]]] = []  # several at one moment: must stay empty

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._enough.wait(0.01):
                self._record(connection.execute(_HOLDERS, [SPACE]).fetchall())

    def _record(self, rows: list[Any]) -> None:
        holders: dict[str, set[int]] = {}
        for run, name in rows:
            holders.setdefault(run, set()).add(int(re.findall(r"\d+", name)[0]))
        self.conflicts += [(run, pids) for run, pids in holders.items() if len(pids) > 1]
        self.holder.update({run: min(pids) for run, pids in holders.items()})

    def stop(self) -> None:
        """End, and wait for that."""
        self._enough.set()
        self.join()


class Sender(threading.Thread):
    """Sends a run's two ranks, each batch to another service, as behind a load balancer."""

    def __init__(self, services: list[Service], run: str, second_half: threading.Event) -> None:
        super().__init__()
        self._services, self._run, self._second_half = services, run, second_half

    def run(self) -> None:
        make = step if self._run.endswith(("0", "5")) else fair_step
        with http.client() as client:
            for first in range(1, STEPS + 1, PER_BATCH):
                if first > STEPS // 2:
                    self._second_half.wait(HANGS)
                records = [make(number) for number in range(first, first + PER_BATCH)]
                for record in records:
                    record.sync = "averaged"
                self._send(client, first // PER_BATCH, records)
            self._send(client, 0, [EndRecord(9.0)])

    def _send(self, client: httpx2.Client, number: int, records: Sequence[Record]) -> None:
        for rank in (0, 1):
            body = batch(self._run, records, rank=rank, world_size=2)
            deliver(client, self._services, number + rank, body)


def deliver(client: httpx2.Client, services: list[Service], first: int, body: bytes) -> None:
    """Send a body to one service after the other until one accepts it."""
    headers = {"Content-Type": "application/x-ndjson"}
    for attempt in range(100):
        url = f"{services[(first + attempt) % len(services)].url}/api/v1/records"
        with suppress(httpx2.TransportError):
            if client.post(url, content=body, headers=headers).status_code == 200:
                return
    raise AssertionError("no service accepted the batch")


def stream(services: list[Service], second_half: threading.Event) -> list[Sender]:
    """Send all runs at once; the second half of each after an event."""
    senders = [Sender(services, run, second_half) for run in RUNS]
    for sender in senders:
        sender.start()
    return senders


def verdicts(service: Service) -> dict[str, Any]:
    """The verdict on every run, with the numbers of steps."""
    return {run: service.get(f"/runs/{run}/verdict").json() for run in RUNS}


def all_evaluated(service: Service) -> bool:
    """Whether all steps of all runs were evaluated."""
    steps = {run["id"]: run["steps"] for run in service.get("/runs").json()["runs"]}
    return all(steps.get(run) == STEPS for run in RUNS)


def test_one_service_evaluates_each_run_and_others_continue_if_it_is_killed(
    url: str, services: list[Service], postgres: Postgres, receiver: Receiver
) -> None:
    claims, killed = Claims(url), threading.Event()
    claims.start()
    senders = stream(services, second_half=killed)
    assert eventually(HANGS, lambda: set(claims.holder) == set(RUNS))
    pids = Counter(claims.holder.values())
    victim = max(services, key=lambda service: pids[service.process.pid])
    victim.kill()
    killed.set()
    for sender in senders:
        sender.join()
    left = [service for service in services if service is not victim]
    assert eventually(HANGS, lambda: all_evaluated(left[0])), left[0].get("/runs").json()
    claims.stop()
    assert claims.conflicts == []
    assert set(claims.holder.values()) <= {service.process.pid for service in left}
    after = verdicts(left[0])
    assert after == verdicts(left[1])
    assert after == _verdicts_of_one_service(postgres)
    broken = sorted(run for run, verdict in after.items() if verdict["verdict"] == "broken")
    left[0].post(batch("a-last-run", [step(1)]))  # its alert comes after those of all others
    assert eventually(HANGS, lambda: runs_alerted(receiver) == ["a-last-run", *broken])
    assert len(messages(left[0])) == len(broken) + 1


def runs_alerted(receiver: Receiver) -> list[str]:
    """The run of every finding in the received messages; a message counts once."""
    bodies = receiver.alerts()
    return sorted(body["data"]["run"]["id"] for body in bodies for _ in body["data"]["findings"])


def _verdicts_of_one_service(postgres: Postgres) -> dict[str, Any]:
    created, at_once = postgres.create(), threading.Event()
    at_once.set()
    with running_service(created) as service:
        for sender in stream([service], second_half=at_once):
            sender.join()
        assert eventually(HANGS, lambda: all_evaluated(service))
        result = verdicts(service)
    postgres.drop(created)
    return result


def test_a_page_of_one_service_shows_the_records_of_another(url: str) -> None:
    with three(url, evaluation_interval="600") as (first, second, third):  # notifications wake them
        first.post(batch("live", [step(1)]))
        assert eventually(HANGS, lambda: second.get("/runs/live").json().get("steps") == 1)
        page = f"{second.url}/api/v1/runs/live/events"
        with http.stream("GET", page) as response:
            lines = response.iter_lines()
            events = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
            assert next(events)["step"] == 1
            for number in range(2, 6):
                (first, third)[number % 2].post(batch("live", [step(number)]))
                assert next(events)["step"] == number
