"""Faults of the service and its database: killed, stopped, restarted, locked, disk full.

Four ranks send meanwhile. What was acknowledged must be there once, and nothing else.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psycopg

from attack.arena import ANY_RATE, Arena, Honest
from attack.outcome import Outcome
from helpers.batches import eventually
from helpers.disks import mounted
from helpers.ports import reserved_port
from helpers.proc import memory
from helpers.service import start_service

SENDERS = 4
PAUSE = 2.0  # seconds for which the service is stopped or the database is unavailable


class Field:
    """A service that restarts on its port, and ranks that continue to send."""

    def __init__(self, url: str, outcome: Outcome) -> None:
        self.url, self.outcome = url, outcome
        self._reserved = ExitStack()
        port = self._reserved.enter_context(reserved_port())
        self.service = start_service(url, port, **ANY_RATE)
        self.before = memory(self.service.process.pid)
        self._enough = threading.Event()
        self.senders = [Honest(port, f"rank-{n}", outcome) for n in range(SENDERS)]
        self._threads = [threading.Thread(target=self._send, args=(s,)) for s in self.senders]
        for thread in self._threads:
            thread.start()

    def _send(self, sender: Honest) -> None:
        while not self._enough.is_set():
            sender.deliver(until=time.monotonic() + 5)
            time.sleep(0.005)

    @property
    def acknowledged(self) -> int:
        """The acknowledged steps of all ranks."""
        return sum(sender.acknowledged for sender in self.senders)

    def go_on(self) -> None:
        """Wait until more steps are acknowledged."""
        enough = self.acknowledged + 60
        if not eventually(60, lambda: self.acknowledged >= enough):
            self.outcome.fault("nothing more is acknowledged")

    def start_again(self) -> None:
        """Start the service on the same port and database."""
        self.service = start_service(self.url, self.service.port, **ANY_RATE)
        self.before = memory(self.service.process.pid)

    def finish(self) -> None:
        """Stop all ranks and compare."""
        self._enough.set()
        for thread in self._threads:
            thread.join()
        for sender in self.senders:
            sender.settle()
        peak = memory(self.service.process.pid, "VmHWM")
        self.outcome.memory = max(self.outcome.memory, peak - self.before)
        self.service.stop()
        self._reserved.close()


def _killed(field: Field, arena: Arena) -> None:
    field.service.kill()
    field.start_again()


def _stopped(field: Field, arena: Arena) -> None:
    field.service.process.send_signal(signal.SIGSTOP)
    time.sleep(PAUSE)
    field.service.process.send_signal(signal.SIGCONT)


def _restarted(field: Field, arena: Arena) -> None:
    if field.service.stop() != 0:
        field.outcome.fault("asked to end, the service failed")
    field.start_again()


def _locked(field: Field, arena: Arena) -> None:
    with _sqlite_locked(field.url) if "sqlite" in field.url else _postgres_locked(field.url):
        time.sleep(2 * PAUSE)


@contextmanager
def _sqlite_locked(url: str) -> Iterator[None]:
    file = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def _postgres_locked(url: str) -> Iterator[None]:
    with psycopg.connect(url.replace("+psycopg", "")) as other:
        other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        yield
        other.rollback()


def _database_restarted(field: Field, arena: Arena) -> None:
    arena.postgres.stop()
    time.sleep(PAUSE)
    arena.postgres.start()


def _disk_full(field: Field, arena: Arena) -> None:
    filler = Path(field.url.removeprefix("sqlite:///")).parent / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    time.sleep(PAUSE)
    filler.unlink()


Fault = Callable[[Field, Arena], None]
BOTH: dict[str, Fault] = {
    "SIGKILL": _killed,
    "SIGSTOP": _stopped,
    "restart": _restarted,
    "locked database": _locked,
}


def attack(arena: Arena) -> Iterator[Outcome]:
    """Repeat each fault on both databases; a full disk on SQLite, a restart of Postgres."""
    rounds = max(2, round(arena.seconds / 10))
    for backend in ("sqlite", "postgres"):
        for name, fault in BOTH.items():
            yield _rounds(f"{name}, {backend}", fault, arena, arena.database(backend), rounds)
    name, url = "restart of Postgres", arena.database("postgres")
    yield _rounds(name, _database_restarted, arena, url, max(1, rounds // 3))
    folder = arena.folder / "disk"
    try:
        with mounted(folder, megabytes=8):
            url = f"sqlite:///{folder / 'a.db'}"
            yield _rounds("full disk, sqlite", _disk_full, arena, url, rounds)
    except subprocess.CalledProcessError:  # mounting a file system is not permitted
        outcome = Outcome("full disk, sqlite: not tried, nothing may be mounted here", tries=1)
        yield outcome


def _rounds(name: str, fault: Fault, arena: Arena, url: str, rounds: int) -> Outcome:
    outcome = Outcome(f"{name} x{rounds}", outage=True)
    chance = random.Random(1)
    field = Field(url, outcome)
    try:
        for _ in range(rounds):
            field.go_on()
            time.sleep(chance.uniform(0, 0.05))
            fault(field, arena)
        field.go_on()
    finally:
        field.finish()
    return outcome
