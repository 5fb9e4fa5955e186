"""An archive read line by line, and brought into a store."""

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

RECORDS_AT_ONCE = 2_048
LONGEST_LINE = 64 * 2**20


@dataclass
class RestoreResult:
    """What came of an archive."""

    run: str
    stored: int = 0
    already_there: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)  # the first refusals


def is_archive(path: Path) -> bool:
    """Whether a file is called like one, or begins like one: nothing else here is zstd."""
    if path.name.endswith(SUFFIX) or not path.is_file():
        return path.name.endswith(SUFFIX)
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def lines(path: Path) -> Iterator[Line]:
    """The manifest, and every line after it. Raises ``DamagedArchive`` where it is not whole."""
    told = hashlib.sha256()
    for count, text in enumerate(_text(path)):
        line = decode(text)
        if count == 0:
            _check(line)
        if isinstance(line, Close):
            if (line.lines, line.sha256) != (count, told.hexdigest()):
                raise DamagedArchive(f"{path}: it is not what was written")
            return
        told.update(text)
        yield line
    raise DamagedArchive(f"{path}: it ends too early")


def _text(path: Path) -> Iterator[bytes]:
    try:
        with zstd.open(path, "rb") as file:
            buffered = io.BufferedReader(file)
            while line := buffered.readline(LONGEST_LINE):
                yield line
    except (zstd.ZstdError, EOFError) as error:
        raise DamagedArchive(f"{path}: {error}") from error


def _check(line: Line) -> None:
    if not isinstance(line, Manifest):
        raise DamagedArchive("it does not begin with the manifest of an archive")
    if line.version > VERSION:
        what = f"it is of version {line.version}, and this gradledger reads up to {VERSION}"
        raise DamagedArchive(f"{what}: pip install --upgrade gradledger")


def restore(store: Store, path: Path) -> RestoreResult:
    """Bring an archive into a store; again changes nothing. Raises ``DamagedArchive``."""
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
        raise DamagedArchive(f"{path}: it says nothing of the run")
    if not isinstance(line, schema.RunRecord):
        raise DamagedArchive(f"{path}: it does not say who speaks")
    try:
        dump.restore(store, line, [(row.table, row.values) for row in rows], clock.now())
    except ValueError as error:
        raise DamagedArchive(f"{path}: {error}") from error
    for batch in _batches(line, content):
        _count(restored, store_batch(store, batch, clock.now()))
    return restored


def record_batches(path: Path) -> Iterator[list[bytes]]:
    """What the processes said, as lines for a service, each batch with its run record first."""
    some: list[bytes] = []
    for line in lines(path):
        if isinstance(line, Manifest | Row | Close):
            continue
        encoded = msgspec.json.encode(line) + b"\n"
        if isinstance(line, schema.RunRecord):
            if some:
                yield some
            some = [encoded]
        elif len(some) > RECORDS_AT_ONCE:
            yield some
            some = [some[0], encoded]
        else:
            some.append(encoded)
    yield some


def _batches(speaker: schema.RunRecord, content: Iterable[Line]) -> Iterator[Batch]:
    batch, size = Batch([ProcessRecords(speaker)]), 0
    for number, line in enumerate(content, 1):
        if isinstance(line, schema.RunRecord):
            batch.processes.append(ProcessRecords(line))
        elif isinstance(line, Manifest | Row | Close):
            raise DamagedArchive("its lines are not in order")
        else:
            batch.processes[-1].records.append((number, line))
            size += 1
        if size == RECORDS_AT_ONCE:
            yield batch
            batch, size = Batch([ProcessRecords(batch.processes[-1].run)]), 0
    yield batch


def _count(restored: RestoreResult, done: StoreResult) -> None:
    restored.stored += done.stored
    restored.already_there += done.duplicates
    restored.refused += done.refused.count
    restored.problems += [f"{refusal.field}: {refusal.reason}" for refusal in done.refused.listed]
