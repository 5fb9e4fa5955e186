"""Which micro-batches of a step ran collectives, over the course of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from sqlalchemy import Connection

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import read_record, unpack_records
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.steps import chunks
from gradledger_monitor.store.steps.curves import Span

MOST_MICRO_BATCHES = 128


@dataclass(frozen=True)
class CollectivePattern:
    """By step, the collectives that ran inside each micro-batch's backward on the lowest rank."""

    step: list[int]
    collectives: list[list[int | None]]


def collectives(store: Store, run: str, span: Span, most: int) -> CollectivePattern:
    """The pattern of at most ``most`` steps, evenly spread, ends included. None: not measured."""
    with store.reading() as connection:
        key = require_run(connection, run).key
        records = _lowest(connection, key, span, most)
    counts = [
        [m.collectives for m in record.micro_batches[:MOST_MICRO_BATCHES]]
        for record in records.values()
    ]
    return CollectivePattern(list(records), counts)


def _lowest(connection: Connection, run: int, span: Span, most: int) -> dict[int, StepRecord]:
    """The records of evenly spread steps, of the lowest rank that has one."""
    records: dict[int, StepRecord] = {}
    unpacked = lru_cache(2)(unpack_records)  # neighbouring steps are in the same chunk
    for step in spread(connection, run, span, most):
        holding = chunks.holding(connection, run, span.optimizer, step - 1, step)
        for chunk in sorted(holding, key=attrgetter("rank")):
            if (raw := unpacked(chunk.records).get(step)) is not None:
                records[step] = read_record(raw)
                break
    return records


def spread(connection: Connection, run: int, span: Span, most: int) -> list[int]:
    """At most ``most`` steps of a span that has records, evenly spread, ends included."""
    first = chunks.next_step(connection, run, span.optimizer, (span.first or 1) - 1)
    last = chunks.last_step(connection, run, span.optimizer, span.last)
    if first is None or last is None or last < first:
        return []
    steps_between = last - first
    count = min(most, steps_between + 1)
    return [first + steps_between * at // max(count - 1, 1) for at in range(count)]
