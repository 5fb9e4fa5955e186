"""Stored records of several steps, by step and rank."""

from __future__ import annotations

from functools import lru_cache

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import read_record, unpack_records
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.steps import chunks
from gradledger_monitor.store.steps.curves import Span
from gradledger_monitor.store.steps.patterns import spread

RecordsByStep = dict[int, dict[int, StepRecord]]


def recent_records(store: Store, run: str, optimizer: int, last: int, most: int) -> RecordsByStep:
    """The records of the steps up to ``last``, ascending: those of ``most`` steps, or fewer."""
    with store.reading() as connection:
        key = require_run(connection, run).key
        by_step: RecordsByStep = {}
        for chunk in chunks.holding(connection, key, optimizer, last - most, last):
            for step, raw in unpack_records(chunk.records).items():
                if last - most < step <= last:
                    by_step.setdefault(step, {})[chunk.rank] = read_record(raw)
    return dict(sorted(by_step.items()))


def spread_records(store: Store, run: str, span: Span, most: int) -> RecordsByStep:
    """The records of at most ``most`` steps of a span, evenly spread, ends included."""
    by_step: RecordsByStep = {}
    unpacked = lru_cache(2 * most)(unpack_records)  # neighbouring steps are in the same chunks
    with store.reading() as connection:
        key = require_run(connection, run).key
        for step in spread(connection, key, span, most):
            for chunk in chunks.holding(connection, key, span.optimizer, step - 1, step):
                if (raw := unpacked(chunk.records).get(step)) is not None:
                    by_step.setdefault(step, {})[chunk.rank] = read_record(raw)
    return by_step
