"""Databases that cannot be used: no database at all, damaged, locked by another process."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from subprocess import CalledProcessError

import psycopg
import pytest

from gradledger_monitor.store.database import Store
from gradledger_monitor.store.integrity import Probe
from gradledger_monitor.telemetry import readiness
from gradledger_monitor.workers.evaluator import Evaluator
from helpers import http
from helpers.batches import batch, eventually, fair_step
from helpers.command import gradledger
from helpers.disks import mounted
from helpers.patience import HANGS
from helpers.postgres import Postgres
from helpers.sending import judged, send
from helpers.service import Service, running_service

COMMANDS = [["serve", "--port", "0"], ["db", "upgrade"], ["token", "list"], ["export", "r"]]
COMMANDS += [
    ["postmortem", "r"],
    ["replay", "r"],
    ["acknowledge", "r", "norm.spike", "--note", "x"],
]


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another connection holds the lock for writing."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


def migrated(file: Path) -> None:
    """Make a database with all tables."""
    with closing(Store(f"sqlite:///{file}")) as store:
        store.migrate()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_file_that_is_no_database_is_named_in_one_line(
    command: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("groceries: milk, eggs, bread, and a good deal of coffee\n" * 100)
    done = gradledger(*command, environment={**os.environ, "GRADLEDGER_DB": f"sqlite:///{file}"})
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gradledger: the database {file} is not an SQLite database. ")
    assert file.read_text().startswith("groceries")


@pytest.mark.parametrize("command", COMMANDS[:3], ids=" ".join)
def test_a_locked_database_is_named_in_one_line(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    migrated(file)
    environment = {**os.environ, "GRADLEDGER_DB": f"sqlite:///{file}"}
    with locked(file):
        done = gradledger(*command, environment=environment)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gradledger: the database {file} is locked by another process. ")


def crowd(service: Service, senders: int) -> Counter[int]:
    """The statuses of batches that are sent at the same time.

    Raises ``httpx2.ReadTimeout`` if senders wait for the database one after another.
    """

    def status(number: int) -> int:
        response = service.post(batch(f"r{number}", [fair_step(1)]))
        assert response.status_code == 200 or response.headers["retry-after"]
        return response.status_code

    with ThreadPoolExecutor(senders) as pool:
        return Counter(pool.map(status, range(senders)))


def accepts(service: Service) -> bool:
    """Whether the service stores a batch now."""
    return service.post(batch("r", [fair_step(1)])).status_code == 200


def test_a_database_locked_while_serving_answers_503_and_then_continues(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db") as service:
        assert accepts(service)
        with locked(tmp_path / "a.db"):
            assert crowd(service, 24) == {503: 24}
            assert service.get("/runs").status_code == 200  # readers wait for no writer
        assert eventually(HANGS, lambda: accepts(service))
        assert crowd(service, 24) == {200: 24}
        assert "Traceback" not in "".join(service.output)


def test_a_locked_table_on_postgres_answers_503_and_then_continues(postgres: Postgres) -> None:
    url = postgres.create()
    with running_service(url) as service:
        assert accepts(service)
        with psycopg.connect(url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            assert crowd(service, 4) == {503: 4}
            other.rollback()
        assert crowd(service, 4) == {200: 4}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is closed at the end of a test."""
    with ExitStack() as opened:
        yield opened


def not_ready(service: Service) -> str:
    """Why the service is not ready; empty if it is. Raises ``httpx2.ReadTimeout`` if it hangs."""
    answer = http.get(f"{service.url}/readyz")
    return "" if answer.status_code == 200 else str(answer.json()["detail"])


def test_a_database_overwritten_while_serving_accepts_no_batch(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with running_service(file) as service:
        assert service.post(batch("before", [fair_step(1)])).status_code == 200
        for path in (file, Path(f"{file}-wal")):
            path.write_bytes(os.urandom(path.stat().st_size))
        assert not_ready(service) == "The database file was overwritten."
        answer = service.post(batch("after", [fair_step(1)]))
        assert answer.status_code == 503 and "overwritten" in answer.json()["detail"]
        for address in ("/runs", "/runs/before", "/runs/before/verdict"):
            assert service.get(address).status_code in (200, 503)  # 200 of what is in memory


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_missing_database_file_is_reported(tmp_path: Path, how: str) -> None:
    file = tmp_path / "a.db"
    with running_service(file) as service:
        assert service.post(batch("before", [fair_step(1)])).status_code == 200
        file.rename(tmp_path / "away.db")
        if how == "replaced":
            file.write_bytes((tmp_path / "away.db").read_bytes())
        assert how in not_ready(service)
        assert service.post(batch("after", [fair_step(1)])).status_code == 503


def test_damaged_pages_make_it_not_ready(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    migrated(file)
    with closing(sqlite3.connect(file)) as reading:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'checkpoints'"
        (page,) = reading.execute(query).fetchone()
        (page_size,) = reading.execute("PRAGMA page_size").fetchone()
    with file.open("r+b") as raw:  # of a table that nothing reads at the start
        raw.seek((page - 1) * page_size)
        raw.write(os.urandom(page_size))
    with running_service(file) as service:
        assert "damaged" in not_ready(service)


def test_a_full_disk_makes_it_not_ready(tmp_path: Path, stack: ExitStack) -> None:
    try:
        disk = stack.enter_context(mounted(tmp_path / "disk", megabytes=3))
    except CalledProcessError:
        pytest.skip("no file system may be mounted here")
    with running_service(disk / "a.db") as service:
        assert not_ready(service) == ""
        assert service.post(batch("r", [fair_step(1)])).status_code == 200
        filler = disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        assert eventually(HANGS, lambda: "The disk takes no data" in not_ready(service))
        large = batch("r", [fair_step(n, tokens=tuple(range(1, 200))) for n in range(2, 40)])
        assert service.post(large).status_code == 503
        filler.unlink()
        assert eventually(HANGS, lambda: not_ready(service) == "")
        assert service.post(large).json() == {"stored": 38, "duplicates": 0}


def test_a_locked_database_makes_it_not_ready(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db") as service:
        with locked(tmp_path / "a.db"):
            assert "locked by another process" in not_ready(service)
        assert eventually(HANGS, lambda: not_ready(service) == "")


def test_postgres_that_cannot_be_written_makes_it_not_ready(postgres: Postgres) -> None:
    url = postgres.create()
    with running_service(url) as service:
        assert not_ready(service) == ""
        with psycopg.connect(url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE")
            assert eventually(HANGS, lambda: "locked" in not_ready(service))
            other.rollback()
        assert eventually(HANGS, lambda: not_ready(service) == "")


def test_many_requests_share_one_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = []
    monkeypatch.setattr(readiness, "REUSE_SECONDS", 0.0)
    monkeypatch.setattr(Probe, "problem", lambda _: probes.append(1))
    with closing(Store(f"sqlite:///{tmp_path / 'a.db'}")) as store:
        ready = readiness.Readiness(store, lambda: True)

        async def ask(times: int) -> None:
            results = await asyncio.gather(*(ready.problem() for _ in range(times)))
            assert results == [None] * times

        asyncio.run(ask(200))  # at the same time
        assert len(probes) == 1
        monkeypatch.setattr(readiness, "REUSE_SECONDS", 3600.0)
        for _ in range(2):  # the result of the second probe is reused
            asyncio.run(ask(200))
            assert len(probes) == 2


def test_a_run_is_evaluated_after_an_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    migrated(tmp_path / "a.db")
    with closing(Store(f"sqlite:///{tmp_path / 'a.db'}")) as store:
        send(store, map(fair_step, range(1, 4)))
        evaluator = Evaluator(store, interval=0.1)
        with locked(tmp_path / "a.db"):
            evaluator.start()
            assert eventually(HANGS, lambda: "the database" in caplog.text)
        try:
            assert eventually(HANGS, lambda: judged(store) == 3)
        finally:
            evaluator.stop()
    assert "Traceback" not in caplog.text
