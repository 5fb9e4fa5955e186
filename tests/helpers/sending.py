"""Stores, records stored as ingest stores them, and a clock that a test sets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from gradledger.records import Record
from gradledger_monitor.ingest import decode
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import get_run
from gradledger_monitor.store.steps.ingest import StoreResult, store_batch
from gradledger_monitor.workers.evaluator import Evaluator
from helpers.batches import batch


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        store = Store(f"sqlite:///{path}")
        store.migrate()
        store.close()
        return path.read_bytes()


def new_database(path: Path) -> str:
    """The URL of a new file with all tables and no row: a copy of one that was migrated."""
    path.touch(mode=0o600)
    path.write_bytes(_migrated())
    return f"sqlite:///{path}"


def new_store(path: Path) -> Store:
    """An empty store in a new file."""
    return Store(new_database(path))


class Clock:
    """A clock that the test sets."""

    def __init__(self, time: float = 10_000.0) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time


def send(
    store: Store, records: Iterable[Record], now: float = 10_000.0, run: str = "r", **fields: Any
) -> StoreResult:
    """Store records as ingest does."""
    return store_batch(store, decode.read(batch(run, records, **fields)), now)


def evaluate_pending(store: Store, rank_timeout: float = 30.0) -> list[str]:
    """Evaluate all steps that are ready; ``rank_timeout=0`` waits for no rank."""
    return Evaluator(store, rank_timeout).evaluate_pending()


def judged(store: Store, run: str = "r") -> int:
    """How many steps of a run were judged."""
    row = get_run(store, run)
    assert row is not None
    return row.steps
