"""Newline-delimited JSON decoded into the records of each process, and refusals (pure).

A bad line is refused alone. Records belong to the last run record before them: if that one was
refused, or there is none, they have no run and are refused too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from io import BytesIO

import msgspec

from gradledger_monitor.ingest import schema

RankRecord = (
    schema.StepRecord
    | schema.EvalRecord
    | schema.CheckpointRecord
    | schema.HeartbeatRecord
    | schema.EndRecord
)
NumberedRecord = tuple[int, RankRecord]

MAX_LISTED = 100  # refusals of a batch that are listed; the rest are only counted
LINES_BETWEEN_CHECKS = 64

_FIELD = re.compile(r" - at `(?:key` in `)?(.+)`$")  # msgspec writes a key as: `key` in `$.missing`


@dataclass(frozen=True)
class Refusal:
    """A line that was not stored: its number, the field, and the reason."""

    line: int
    field: str
    reason: str


@dataclass
class Refusals:
    """How many lines were refused, with the details of the first ones."""

    count: int = 0
    listed: list[Refusal] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether further refusals are only counted."""
        return len(self.listed) >= MAX_LISTED

    def add(self, refusal: Refusal) -> None:
        """Count a refusal, and list it unless the list is full."""
        self.count += 1
        if not self.full:
            self.listed.append(refusal)

    def extend(self, refusals: Iterable[Refusal]) -> None:
        """Add several refusals."""
        for refusal in refusals:
            self.add(refusal)

    def copy(self) -> Refusals:
        """An independent copy."""
        return Refusals(self.count, list(self.listed))


@dataclass
class ProcessRecords:
    """The records of one process in a batch, with line numbers."""

    run: schema.RunRecord
    records: list[NumberedRecord] = field(default_factory=list)


@dataclass
class Batch:
    """A decoded body."""

    processes: list[ProcessRecords] = field(default_factory=list)
    refused: Refusals = field(default_factory=Refusals)

    def newest_step_time(self) -> float | None:
        """When the newest step ended, Unix seconds by the clock of the training process."""
        records = (record for process in self.processes for _, record in process.records)
        times = (r.time for r in records if isinstance(r, schema.StepRecord))
        return max(times, default=None)


class _Tag(msgspec.Struct):
    type: str = ""


def read(body: bytes, check_time: Callable[[], None] = lambda: None) -> Batch:
    """Decode a body line by line; ``check_time`` raises if that takes too long."""
    batch = Batch()
    process: ProcessRecords | None = None
    for number, line in enumerate(BytesIO(body), 1):  # the fastest way to split lines
        if number % LINES_BETWEEN_CHECKS == 0:
            check_time()
        try:
            record = schema.decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if line.strip():
                batch.refused.add(_decode_refusal(number, error))
                # records after a refused run record must not be added to the run before it
                process = None if _is_run(line) else process
            continue
        if isinstance(record, schema.RunRecord):
            process = _new_process(number, record, batch)
        elif process is None:
            batch.refused.add(_no_run_refusal(number))
        else:
            process.records.append((number, record))
    return batch


def _new_process(number: int, run: schema.RunRecord, batch: Batch) -> ProcessRecords | None:
    """The process that sent the following records; None if its run record is refused."""
    refusal = _run_refusal(number, run)
    if refusal is not None:
        batch.refused.add(refusal)
        return None
    batch.processes.append(ProcessRecords(run))
    return batch.processes[-1]


def _decode_refusal(number: int, error: Exception) -> Refusal:
    if isinstance(error, UnicodeDecodeError):  # up to msgspec 0.22
        return Refusal(number, "$", f"not UTF-8: {error.reason}")
    if isinstance(error, RecursionError):
        return Refusal(number, "$", "nested too deeply")
    message = str(error)
    field_suffix = _FIELD.search(message)
    if field_suffix is None:
        return Refusal(number, "$", message)
    return Refusal(number, field_suffix[1], message[: field_suffix.start()])


def _run_refusal(number: int, record: schema.RunRecord) -> Refusal | None:
    if record.rank >= record.world_size:
        reason = f"rank {record.rank} does not exist in a world of {record.world_size}"
        return Refusal(number, "$.rank", reason)
    try:
        msgspec.msgpack.encode(record.config)
    except (OverflowError, RecursionError) as error:
        return Refusal(number, "$.config", f"cannot be stored: {error}")
    return None


def _is_run(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=_Tag).type == "run"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _no_run_refusal(number: int) -> Refusal:
    return Refusal(number, "$", "unknown run: no accepted run record precedes this line")
