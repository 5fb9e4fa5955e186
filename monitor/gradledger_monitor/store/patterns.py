"""Which micro-batches of a step communicated, over the course of a run."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from gradledger_monitor.store.curves import Span
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import unpack_record
from gradledger_monitor.store.tables import runs, steps

MOST_MICRO_BATCHES = 128


@dataclass(frozen=True)
class Pattern:
    """By step, the collectives that ran inside each micro-batch's backward on the lowest rank."""

    step: list[int]
    collectives: list[list[int | None]]


def collectives(store: Store, run: str, span: Span, most: int) -> Pattern:
    """Of at most so many steps, evenly spread, ends included. None was not measured."""
    key = select(runs.c.key).where(runs.c.id == run).scalar_subquery()
    here = [steps.c.run == key, steps.c.optimizer == span.optimizer]
    here += [steps.c.step >= span.first] if span.first is not None else []
    here += [steps.c.step <= span.last] if span.last is not None else []
    with store.reading() as connection:
        ends = select(func.min(steps.c.step), func.max(steps.c.step)).where(*here)
        first, last = connection.execute(ends).one()
        if first is None:
            return Pattern([], [])
        chosen = steps.c.step.in_(_spread(first, last, most))
        query = select(steps.c.step, steps.c.record).where(*here, chosen)
        rows = connection.execute(query.order_by(steps.c.step, steps.c.rank)).all()
    lowest = {row.step: row.record for row in reversed(rows)}
    found = {step: unpack_record(record) for step, record in sorted(lowest.items())}
    counts = [
        [m.collectives for m in record.micro_batches[:MOST_MICRO_BATCHES]]
        for record in found.values()
    ]
    return Pattern(list(found), counts)


def _spread(first: int, last: int, most: int) -> list[int]:
    steps_between = last - first
    count = min(most, steps_between + 1)
    return [first + steps_between * at // max(count - 1, 1) for at in range(count)]
