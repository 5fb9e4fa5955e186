"""Databases that cannot be used: no database at all, damaged, locked by another process."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from subprocess import CalledProcessError

import psycopg
import pytest

from gradledger_monitor.store.database import Store
from helpers import http
from helpers.batches import batch, eventually, fair_step
from helpers.command import gradledger
from helpers.disks import mounted
from helpers.postgres import Postgres
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


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is closed at the end of a test."""
    with ExitStack() as opened:
        yield opened


def not_ready(service: Service) -> str:
    """Why the service is not ready; empty if it is."""
    began = time.monotonic()
    answer = http.get(f"{service.url}/readyz", timeout=30)
    assert time.monotonic() - began < 5
    return "" if answer.status_code == 200 else str(answer.json()["detail"])


def test_a_database_overwritten_while_serving_takes_nothing_in(tmp_path: Path) -> None:
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
def test_a_database_file_that_is_gone_is_noticed(tmp_path: Path, how: str) -> None:
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
        assert eventually(15, lambda: "The disk takes no data" in not_ready(service))
        large = batch("r", [fair_step(n, tokens=tuple(range(1, 200))) for n in range(2, 40)])
        assert service.post(large).status_code == 503
        filler.unlink()
        assert eventually(15, lambda: not_ready(service) == "")
        assert service.post(large).json() == {"stored": 38, "duplicates": 0}


def test_a_locked_database_makes_it_not_ready(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db") as service:
        with locked(tmp_path / "a.db"):
            assert "locked by another process" in not_ready(service)
        assert eventually(15, lambda: not_ready(service) == "")


def test_postgres_that_cannot_be_written_makes_it_not_ready(postgres: Postgres) -> None:
    url = postgres.create()
    with running_service(url) as service:
        assert not_ready(service) == ""
        with psycopg.connect(url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE")
            assert eventually(15, lambda: "locked" in not_ready(service))
            other.rollback()
        assert eventually(15, lambda: not_ready(service) == "")


def test_many_who_ask_cause_one_probe(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db", reads_per_second="0") as service:
        http.get(f"{service.url}/readyz")
        time.sleep(5.1)  # for which a result holds
        before, began = written(service.process.pid), time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            url = f"{service.url}/readyz"
            answers = list(pool.map(lambda _: http.get(url).status_code, range(200)))
        assert answers == [200] * 200
        probes = 2 + (time.monotonic() - began) / 5
        assert 0 < written(service.process.pid) - before < probes * 300_000 + 200 * 1_000


def written(pid: int) -> int:
    """Bytes that a process wrote so far."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def test_a_run_is_evaluated_soon_after_an_outage(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db") as service:
        assert service.post(batch("r", map(fair_step, range(1, 4)))).status_code == 200
        with locked(tmp_path / "a.db"):
            time.sleep(6)  # for the evaluator to try, and to fail
        began = time.monotonic()
        assert service.post(batch("r", [fair_step(4)])).status_code in (200, 503)
        assert eventually(60, lambda: bool(service.get("/runs/r").json()["steps"] >= 3))
        assert time.monotonic() - began < 20
        assert "Traceback" not in "".join(service.output)
