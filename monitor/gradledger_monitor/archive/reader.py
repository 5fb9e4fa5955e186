"""Reads an archive line by line, and imports it into a store."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gradledger_monitor.archive.format import (
    SUFFIX,
    VERSION,
    Close,
    DamagedArchive,
    Line,
    Manifest,
    Row,
    decode,
)
from gradledger_monitor.common import clock
from gradledger_monitor.common.zstd import MAGIC, zstd
from gradledger_monitor.ingest import schema
from gradledger_monitor.ingest.decode import Batch, ProcessRecords
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import dump
from gradledger_monitor.store.steps.ingest import StoreResult, store_batch

BATCH_RECORDS = 2_048
MAX_LINE_BYTES = 64 * 2**20


@dataclass
class RestoreResult:
    """Counts of an imported archive."""

    run: str
    stored: int = 0
    already_there: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)  # the first refusals


def is_archive(path: Path) -> bool:
    """Whether a file has the suffix of an archive, or begins with a zstd frame."""
    if path.name.endswith(SUFFIX) or not path.is_file():
        return path.name.endswith(SUFFIX)
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def lines(path: Path) -> Iterator[Line]:
    """The manifest and all lines up to the last. Raises ``DamagedArchive`` if it is not intact."""
    digest = hashlib.sha256()
    for count, text in enumerate(_text(path)):
        line = decode(text)
        if count == 0:
            _check(line)
        if isinstance(line, Close):
            if (line.lines, line.sha256) != (count, digest.hexdigest()):
                raise DamagedArchive(f"{path}: the checksum does not match")
            return
        digest.update(text)
        yield line
    raise DamagedArchive(f"{path}: it is truncated")


def _text(path: Path) -> Iterator[bytes]:
    try:
        with zstd.open(path, "rb") as file:
            buffered = io.BufferedReader(file)
            while line := buffered.readline(MAX_LINE_BYTES):
                yield line
    except (zstd.ZstdError, EOFError) as error:
        raise DamagedArchive(f"{path}: {error}") from error


def _check(line: Line) -> None:
    if not isinstance(line, Manifest):
        raise DamagedArchive("it does not begin with a manifest")
    if line.version > VERSION:
        raise DamagedArchive(
            f"it has version {line.version}, and this gradledger reads up to {VERSION}: "
            "pip install --upgrade gradledger"
        )


def restore(store: Store, path: Path) -> RestoreResult:
    """Import an archive into a store; idempotent. Raises ``DamagedArchive``."""
    content = lines(path)
    manifest = next(content)
    assert isinstance(manifest, Manifest)
    restored = RestoreResult(manifest.run)
    rows: list[Row] = []
    for line in content:
        if not isinstance(line, Row):
            break
        rows.append(line)
    else:
        raise DamagedArchive(f"{path}: it has no records")
    if not isinstance(line, schema.RunRecord):
        raise DamagedArchive(f"{path}: it has no run record before its records")
    try:
        dump.restore(store, line, [(row.table, row.values) for row in rows], clock.now())
    except ValueError as error:
        raise DamagedArchive(f"{path}: {error}") from error
    for batch in _batches(line, content):
        _count(restored, store_batch(store, batch, clock.now()))
    return restored


def record_batches(path: Path) -> Iterator[list[bytes]]:
    """The records as encoded lines for a service, each batch with its run record first."""
    batch: list[bytes] = []
    for line in lines(path):
        if isinstance(line, Manifest | Row | Close):
            continue
        encoded = msgspec.json.encode(line) + b"\n"
        if isinstance(line, schema.RunRecord):
            if batch:
                yield batch
            batch = [encoded]
        elif len(batch) > BATCH_RECORDS:
            yield batch
            batch = [batch[0], encoded]
        else:
            batch.append(encoded)
    yield batch


def _batches(run: schema.RunRecord, content: Iterable[Line]) -> Iterator[Batch]:
    batch, size = Batch([ProcessRecords(run)]), 0
    for number, line in enumerate(content, 1):
        if isinstance(line, schema.RunRecord):
            batch.processes.append(ProcessRecords(line))
        elif isinstance(line, Manifest | Row | Close):
            raise DamagedArchive("its lines are out of order")
        else:
            batch.processes[-1].records.append((number, line))
            size += 1
        if size == BATCH_RECORDS:
            yield batch
            batch, size = Batch([ProcessRecords(batch.processes[-1].run)]), 0
    yield batch


def _count(restored: RestoreResult, result: StoreResult) -> None:
    restored.stored += result.stored
    restored.already_there += result.duplicates
    restored.refused += result.refused.count
    restored.problems += [f"{refusal.field}: {refusal.reason}" for refusal in result.refused.listed]
