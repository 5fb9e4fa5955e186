"""Runs by id or name in the database, or by the path of an archive, a spool file or another log.

A file is imported into a temporary database, which exists as long as it is used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradledger.delivery.encoding import encode
from gradledger.delivery.spool_file import SUFFIX, SpoolFile, is_run
from gradledger.delivery.uploader import BATCH_BYTES, BATCH_LINES
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
from gradledger_monitor.workers.evaluator import evaluate_all

BATCH_SIZE = 2_048


@dataclass(frozen=True)
class OpenRuns:
    """A store, and the ids of the requested runs in it."""

    store: Store
    runs: list[str]


@contextmanager
def open_database(url: str) -> Iterator[Store]:
    """Open a database, migrated to this version, for the length of a block."""
    store = Store(url)
    try:
        store.migrate()
        yield store
    finally:
        store.close()


@contextmanager
def open_runs(
    reference: str, url: str, overrides: RuleOverrides | None = None
) -> Iterator[OpenRuns]:
    """Open a run by its id or name in a database, or all runs of a file or folder.

    Raises ``UnknownRun``, ``DamagedArchive`` and ``UnreadableLog``.
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
        evaluate_all(store, overrides or RuleOverrides())
        yield OpenRuns(store, runs)


def find_run(store: Store, reference: str) -> str:
    """The id of a run from its id, or from its name: the newest. Raises ``UnknownRun``."""
    if queries.get_run(store, reference) is not None:
        return reference
    ids = [run.id for run in queries.list_runs(store, search=reference) if run.name == reference]
    if not ids:
        raise UnknownRun(reference)
    return ids[0]


def store_file(store: Store, path: Path) -> list[str]:
    """Store the runs of a file or folder, and return their ids."""
    if archives.is_archive(path):
        return [archives.restore(store, path).run]
    if path.suffix == SUFFIX and path.is_file() and is_run(_first_line(path)):
        return _store_spool(store, path)
    return [store_log(store, log) for log in detect.reader(path)(path)]


def _first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline()


def _store_spool(store: Store, path: Path) -> list[str]:
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


def store_log(store: Store, log: TrainingLog, mapping: Mapping[str, str] | None = None) -> str:
    """Store the log of another tool, and return the id of its run."""
    for lines in record_batches(log, mapping or {}):
        store_batch(store, decode.read(b"".join(lines)), clock.now())
    return to_records.identity(log)


def record_batches(
    log: TrainingLog, mapping: Mapping[str, str], run: str | None = None, name: str | None = None
) -> Iterator[list[bytes]]:
    """The records of a log as encoded lines, in batches with the run record first."""
    lines = map(encode, to_records.records(log, mapping, run, name))
    run_record = next(lines)
    batch = [run_record]
    for line in lines:
        batch.append(line)
        if len(batch) > BATCH_SIZE:
            yield batch
            batch = [run_record]
    yield batch
