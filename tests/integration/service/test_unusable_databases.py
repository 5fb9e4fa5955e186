"""Databases that cannot be used: no database at all, damaged, locked by another process."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from gradledger_monitor.store.database import Store
from helpers.batches import batch, fair_step
from helpers.command import gradledger
from helpers.postgres import Postgres
from helpers.service import Service, running_service

COMMANDS = [["serve", "--port", "0"], ["db", "upgrade"], ["token", "list"], ["export", "r"]]
COMMANDS += [["postmortem", "r"], ["replay", "r"], ["acknowledge", "r", "norm.spike", "--note", "x"]]


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
def test_a_locked_database_is_named_in_one_line_within_seconds(
    command: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "a.db"
    migrated(file)
    environment = {**os.environ, "GRADLEDGER_DB": f"sqlite:///{file}"}
    with locked(file):
        began = time.monotonic()
        done = gradledger(*command, environment=environment)
        assert time.monotonic() - began < 15
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gradledger: the database {file} is locked by another process. ")


def statuses_of(service: Service, count: int) -> tuple[dict[int, int], float]:
    """What so many senders at the same time are answered, and how long the slowest waits."""
    statuses: dict[int, int] = {}
    waits = []

    def send(number: int) -> None:
        began = time.monotonic()
        answer = service.post(batch(f"r{number}", [fair_step(1)]))
        waits.append(time.monotonic() - began)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert answer.status_code == 200 or answer.headers["retry-after"]

    threads = [threading.Thread(target=send, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses, max(waits)


def test_a_database_locked_while_serving_answers_503_soon_and_goes_on(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db") as service:
        assert service.post(batch("before", [fair_step(1)])).status_code == 200
        with locked(tmp_path / "a.db"):
            statuses, slowest = statuses_of(service, 24)
            assert statuses == {503: 24} and slowest < 5
            assert service.get("/runs").status_code == 200  # readers wait for no writer
        time.sleep(1)  # for which nobody tries again
        assert statuses_of(service, 24)[0] == {200: 24}
        assert "Traceback" not in "".join(line for line in service.output if "request_id" in line)


def test_a_locked_table_on_postgres_answers_503_soon(postgres: Postgres) -> None:
    url = postgres.create()
    with running_service(url) as service:
        assert service.post(batch("before", [fair_step(1)])).status_code == 200
        with psycopg.connect(url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            statuses, slowest = statuses_of(service, 4)
            assert statuses == {503: 4} and slowest < 5
            other.rollback()
        assert statuses_of(service, 4)[0] == {200: 4}


def test_a_database_overwritten_while_serving_takes_nothing_in(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with running_service(file) as service:
        assert service.post(batch("before", [fair_step(1)])).status_code == 200
        for path in (file, Path(f"{file}-wal")):
            path.write_bytes(os.urandom(path.stat().st_size))
        for path in ("/runs", "/runs/before", "/runs/before/verdict"):
            assert service.get(path).status_code in (200, 503)  # 200 of what is in memory
        assert service.post(batch("after", [fair_step(1)])).status_code == 503
