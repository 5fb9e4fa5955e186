"""Writes a stored run as an archive, a chunk of steps at a time."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

import gradledger
from gradledger_monitor.archive.format import VERSION, Close, Manifest, Row
from gradledger_monitor.common import clock
from gradledger_monitor.common.zstd import zstd
from gradledger_monitor.ingest import schema
from gradledger_monitor.store import private_files
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import dump
from gradledger_monitor.store.runs.dump import RunDump


@dataclass
class ExportResult:
    """Counts of a written archive."""

    lines: int = 0
    steps: int = 0  # records of optimizer steps


def export(store: Store, run: str, path: Path) -> ExportResult:
    """Write a run to a private file, which exists only once it is complete.

    Raises ``UnknownRun``, and ``OSError`` if the file cannot be written.
    """
    if path.exists() and not path.is_file():  # the finished file would replace a device or a pipe
        raise FileExistsError(errno.EEXIST, "exists, and is no file that can be replaced")
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with suppress(FileNotFoundError):
            unfinished.unlink()  # left by an export that was killed
        private_files.create(unfinished)
        with zstd.open(unfinished, "wb") as file:
            written = write(store, run, file)
        unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return written


def write(store: Store, run: str, file: IO[bytes]) -> ExportResult:
    """Write the lines of a run. Raises ``UnknownRun``."""
    digest, written = hashlib.sha256(), ExportResult()
    for line in _lines(dump.dump(store, run)):
        encoded = msgspec.json.encode(line) + b"\n"
        digest.update(encoded)
        file.write(encoded)
        written.lines += 1
        written.steps += isinstance(line, schema.StepRecord)
    file.write(msgspec.json.encode(Close(lines=written.lines, sha256=digest.hexdigest())) + b"\n")
    return written


def _lines(dumped: RunDump) -> Iterator[msgspec.Struct]:
    yield Manifest(
        version=VERSION,
        run=dumped.run.run,
        name=dumped.run.name,
        exported=clock.now(),
        written_by=f"gradledger {gradledger.__version__}",
    )
    for table, values in dumped.rows:
        yield Row(table=table, values=values)
    yield from _records(dumped.run, dumped.records)


def _records(
    run: schema.RunRecord, records: Iterable[tuple[int, schema.Record]]
) -> Iterator[msgspec.Struct]:
    """Records, each after the run record of the rank that sent it."""
    last_rank = None
    for rank, record in records:
        if rank != last_rank:
            last_rank = rank
            yield msgspec.structs.replace(run, rank=rank)
        yield record
    if last_rank is None:
        yield run
