"""Runs by any name: an id in the database, an archive, a spool, or a log of another tool.

What is not in the database is brought into one of its own, for as long as somebody looks at it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradledger.delivery.spool_file import SUFFIX, SpoolFile, is_run
from gradledger.delivery.uploader import BATCH_BYTES, BATCH_LINES
from gradledger.records import encode
from gradledger_monitor.archive import reader as archives
from gradledger_monitor.common import clock
from gradledger_monitor.importers import detect, to_records
from gradledger_monitor.importers.metric_log import TrainingLog
from gradledger_monitor.ingest import decode
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.runs.queries import UnknownRun
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.workers.evaluator import evaluate_pending

LINES_AT_ONCE = 2_048


@dataclass(frozen=True)
class OpenRuns:
    """A store, and which runs of it were asked for."""

    store: Store
    runs: list[str]


@contextmanager
def open_database(url: str) -> Iterator[Store]:
    """A database, brought up to this version, for the length of a block."""
    store = Store(url)
    try:
        store.migrate()
        yield store
    finally:
        store.close()


@contextmanager
def open_runs(reference: str, url: str, choices: RuleOverrides | None = None) -> Iterator[OpenRuns]:
    """A run by its id or name in a database, or by the file or folder that holds it.

    Raises ``UnknownRun``, ``DamagedArchive`` and ``Unreadable``.
    """
    path = Path(reference)
    if not path.exists():
        with open_database(url) as store:
            yield OpenRuns(store, [find_run(store, reference)])
        return
    with (
        tempfile.TemporaryDirectory(prefix="gradledger-") as folder,
        open_database(f"sqlite:///{Path(folder) / 'one.db'}") as store,
    ):
        runs = store_file(store, path)
        evaluate_all(store, choices or RuleOverrides())
        yield OpenRuns(store, runs)


def find_run(store: Store, reference: str) -> str:
    """The id of a run: given as it is, or the newest of that name. Raises ``UnknownRun``."""
    if queries.get_run(store, reference) is not None:
        return reference
    named = [run.id for run in queries.list_runs(store, search=reference) if run.name == reference]
    if not named:
        raise UnknownRun(reference)
    return named[0]


def store_file(store: Store, path: Path) -> list[str]:
    """Store what a file or folder holds; the ids of its runs."""
    if archives.is_archive(path):
        return [archives.restore(store, path).run]
    if path.suffix == SUFFIX and path.is_file() and is_run(_first_line(path)):
        return _of_spool(store, path)
    return [store_log(store, logged) for logged in detect.reader(path)(path)]


def _first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline()


def _of_spool(store: Store, path: Path) -> list[str]:
    file, runs = SpoolFile.read(path), dict[str, None]()
    try:
        while lines := file.peek(BATCH_LINES, BATCH_BYTES):
            batch = decode.read(b"".join(lines))
            store_batch(store, batch, clock.now())
            runs |= dict.fromkeys(report.run.run for report in batch.processes)
            file.advance(sum(not is_run(line) for line in lines))
    finally:
        file.close()
    return list(runs)


def store_log(store: Store, logged: TrainingLog, told: Mapping[str, str] | None = None) -> str:
    """Store the log of another tool; the id of the run."""
    for lines in record_batches(logged, told or {}):
        store_batch(store, decode.read(b"".join(lines)), clock.now())
    return to_records.identity(logged)


def record_batches(
    logged: TrainingLog, told: Mapping[str, str], run: str | None = None, name: str | None = None
) -> Iterator[list[bytes]]:
    """The lines of a log as the wire has them, so many at once, each time the run record first."""
    lines = map(encode, to_records.records(logged, told, run, name))
    head = next(lines)
    some = [head]
    for line in lines:
        some.append(line)
        if len(some) > LINES_AT_ONCE:
            yield some
            some = [head]
    yield some


def evaluate_all(store: Store, choices: RuleOverrides, patience: float = 0) -> None:
    """Judge everything that is there; after ``patience`` seconds, nothing more will come."""
    while evaluate_pending(store, patience, choices):
        pass
