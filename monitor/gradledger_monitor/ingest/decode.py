"""A body of newline-delimited JSON taken apart: what each process said, and what is refused (pure).

A bad line costs only itself. A line that no accepted run record stands before has no run.
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

LISTED = 100  # refusals of a batch that are listed; the rest are counted
LINES_BETWEEN_CHECKS = 64

_FIELD = re.compile(r" - at `(.+)`$")


@dataclass(frozen=True)
class Refusal:
    """A line that was not stored: which, what about it, and why."""

    line: int
    field: str
    reason: str


@dataclass
class Refusals:
    """How many lines were refused, and the first of them in detail."""

    count: int = 0
    listed: list[Refusal] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether further refusals are only counted."""
        return len(self.listed) >= LISTED

    def add(self, refusal: Refusal) -> None:
        """Count a refusal, and list it if it is among the first."""
        self.count += 1
        if not self.full:
            self.listed.append(refusal)

    def extend(self, refusals: Iterable[Refusal]) -> None:
        """Add several."""
        for refusal in refusals:
            self.add(refusal)

    def copy(self) -> Refusals:
        """An independent copy."""
        return Refusals(self.count, list(self.listed))


@dataclass
class ProcessRecords:
    """What one process said in a batch, with line numbers."""

    run: schema.RunRecord
    records: list[NumberedRecord] = field(default_factory=list)


@dataclass
class Batch:
    """A body, taken apart."""

    processes: list[ProcessRecords] = field(default_factory=list)
    refused: Refusals = field(default_factory=Refusals)

    def newest_step_time(self) -> float | None:
        """When the newest step ended, by the clock of the training process."""
        lines = (line for report in self.processes for _, line in report.records)
        return max(
            (line.time for line in lines if isinstance(line, schema.StepRecord)), default=None
        )


class _Tag(msgspec.Struct):
    type: str = ""


def read(body: bytes, check_time: Callable[[], None] = lambda: None) -> Batch:
    """Take a body apart, line by line; ``check_time`` raises if that takes too long."""
    batch = Batch()
    speaker: ProcessRecords | None = None
    for number, line in enumerate(BytesIO(body), 1):  # which finds lines fastest
        if number % LINES_BETWEEN_CHECKS == 0:
            check_time()
        try:
            record = schema.decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if line.strip():
                batch.refused.add(_explain(number, error))
                # what follows a refused run record must not be booked on the run before it
                speaker = None if _is_run(line) else speaker
            continue
        if isinstance(record, schema.RunRecord):
            speaker = _speaker(number, record, batch)
        elif speaker is None:
            batch.refused.add(_without_run(number))
        else:
            speaker.records.append((number, record))
    return batch


def _speaker(number: int, run: schema.RunRecord, batch: Batch) -> ProcessRecords | None:
    """The process that says what follows; None where its run record is refused."""
    refusal = _object_to(number, run)
    if refusal is not None:
        batch.refused.add(refusal)
        return None
    batch.processes.append(ProcessRecords(run))
    return batch.processes[-1]


def _explain(number: int, error: Exception) -> Refusal:
    if isinstance(error, UnicodeDecodeError):
        return Refusal(number, "$", f"a text in it is not UTF-8: {error.reason}")
    if isinstance(error, RecursionError):
        return Refusal(number, "$", "nested too deeply")
    message = str(error)
    found = _FIELD.search(message)
    if found is None:
        return Refusal(number, "$", message)
    return Refusal(number, found[1], message[: found.start()])


def _object_to(number: int, record: schema.RunRecord) -> Refusal | None:
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


def _without_run(number: int) -> Refusal:
    return Refusal(number, "$", "unknown run: no accepted run record stands before this line")
