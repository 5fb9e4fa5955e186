"""Ranks that all step on the gradients of one of them, as after a broadcast."""

from __future__ import annotations

from collections.abc import Sequence

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.clipping import clipping_of_window
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.norms import norms_are_equal
from gradledger_monitor.model.ranks.rows import MIN_COORDINATES, are_equal


def factors_of_one(rows: Sequence[StepRecord], tolerance: float) -> tuple[float, ...]:
    """What each rank's gradients were multiplied by: 0 for all but one; empty if unproved.

    A rank whose gradients were multiplied by one number sends that number, and no samples. Those of
    the others became equal to each other, with the same norm: their own ones are replaced.
    """
    sources = [row for row in rows if row.samples is None and number(row.post_factor)]
    samples = [row.samples for row in rows if row.samples is not None]
    if len(sources) != 1 or len(samples) != len(rows) - 1 or not norms_are_equal(rows):
        return ()
    applied = [list(map(float, sample.at_step)) for sample in samples]
    own = [list(map(float, sample.after_backward)) for sample in samples]
    replaced = all(_count(values) >= MIN_COORDINATES for values in own)
    if not replaced or len(set(map(len, applied))) > 1 or _count(applied[0]) < MIN_COORDINATES:
        return ()
    if not all(are_equal(column, tolerance) for column in zip(*applied, strict=True)):
        return ()
    (source,) = sources
    factor = float(source.post_factor or 0.0) / clipping_of_window(source)
    return tuple(factor if row is source else 0.0 for row in rows)


def _count(values: Sequence[float]) -> int:
    return sum(map(bool, values))
