"""How a loop combined gradients whose parameters the optimizers of the ranks share out, as ZeRO.

Each rank sends gradients of the same coordinates of the model: ``x_r``, as its last backward left
them, and ``y_r``, of the coordinates that its optimizer holds, when it steps. Together, the
``y_r`` are what one optimizer of the whole model would have applied; so they show by what the sum
of the ``x_r`` was multiplied, as where every rank holds all (see ``manual_all_reduce``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import Samples, StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.clipping import clipping_of_window
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.manual_all_reduce import (
    ManualAllReduce,
    RecordsByRank,
    fit,
    sum_of,
    tolerance_of,
)
from gradledger_monitor.model.ranks.rows import MIN_COORDINATES, are_equal, ratio

OF_OWNERS = (
    "each rank steps a share of the parameters on the gradients that it computed itself, without "
    "those of the other ranks"
)
OF_SOME_OWNERS = (
    "of some parameters, the ranks combine the gradients; of others, a rank steps on those that it "
    "computed itself"
)


class _Column(NamedTuple):
    """A coordinate: ``x_r`` of all ranks, the ``y_r``, and the ranks that hold it, by index."""

    before: tuple[float, ...]
    applied: float
    holders: list[int]


def with_shares(records: RecordsByRank) -> tuple[RecordsByRank, ManualAllReduce | None]:
    """The records, and how their gradients were combined; None if the shares do not show it."""
    rows = list(records.values())
    if len(rows) < 2 or not all(map(_may_show, rows)):
        return records, None
    prints = [value for row in rows if (value := number(row.shared_model)) is not None]
    if not all(map(math.isfinite, prints)) or not are_equal(prints, tolerances.REPLICAS):
        return records, None
    tolerance = tolerance_of(rows)
    columns = _columns(rows, tolerance)
    if len(columns) < MIN_COORDINATES:
        return records, None
    before = [[column.before[rank] for column in columns] for rank in range(len(rows))]
    applied = [column.applied for column in columns]
    samples = [Samples(after_backward=[*row], at_step=[*applied]) for row in before]
    combined = fit(list(records), samples, [1.0] * len(rows), tolerance)
    if combined.is_known:
        once = all(len(holders) == 1 for _, _, holders in columns)
        return {rank: _as_shard(record, once) for rank, record in records.items()}, combined
    if _is_of_owners(columns, tolerance):
        return records, ManualAllReduce(reason=OF_OWNERS, of_owners=1.0)
    share = _share_of_owners(columns, tolerance)
    if share:
        return records, ManualAllReduce(reason=OF_SOME_OWNERS, of_owners=share)
    return records, None


def _may_show(record: StepRecord) -> bool:
    """Whether its samples are those of this rank alone, and of a step that was taken."""
    inside = any(micro_batch.collectives for micro_batch in record.micro_batches)
    return bool(
        record.shares is not None
        and record.shared_model is not None
        and not (record.wrapper or record.skipped or (inside and not record.own_shares))
    )


def _columns(rows: Sequence[StepRecord], tolerance: float) -> list[_Column]:
    """The coordinates that some rank holds; none if ranks hold one and step on different values."""
    shares = [row.shares for row in rows if row.shares is not None]
    before = [list(map(float, share.after_backward)) for share in shares]
    held = [
        [float(value) / clipping_of_window(row) for value in share.at_step]
        for row, share in zip(rows, shares, strict=True)
    ]
    if len(set(map(len, chain(before, held)))) != 1:
        return []
    columns = []
    for own, of_ranks in zip(zip(*before, strict=True), zip(*held, strict=True), strict=True):
        holders = [index for index, value in enumerate(of_ranks) if not math.isnan(value)]
        values = [of_ranks[index] for index in holders]
        if not holders or not all(map(math.isfinite, (*own, *values))):
            continue
        if not are_equal(values, tolerance):
            return []
        columns.append(_Column(own, values[0], holders))
    return columns


def _is_of_owners(columns: Sequence[_Column], tolerance: float) -> bool:
    """Whether each coordinate is that of its holder alone, up to one factor, on several ranks.

    A coordinate at which all ranks have the same gradient shows nothing.
    """
    shown = [column for column in columns if len(set(column.before)) > 1]
    own = [column.before[column.holders[0]] for column in shown]
    several = len({column.holders[0] for column in shown if column.applied}) > 1
    return several and ratio([column.applied for column in shown], own, tolerance) is not None


def _share_of_owners(columns: Sequence[_Column], tolerance: float) -> float:
    """The share of coordinates that are those of their holder alone, where the others are a sum.

    Zero if some are neither, or too few are of one kind to show it.
    """
    alone = [c for c in columns if _is_multiple(c, c.before[c.holders[0]], tolerance)]
    of_all = [column for column in columns if column not in alone]
    rows = [list(row) for row in zip(*(column.before for column in of_all), strict=True)]
    own = [column for column in alone if len(set(column.before)) > 1 and column.applied]
    if min(len(of_all), len(own)) < MIN_COORDINATES:
        return 0.0
    fits = sum_of(rows, [column.applied for column in of_all], tolerance).factor is not None
    return len(alone) / len(columns) if fits else 0.0


def _is_multiple(column: _Column, own: float, tolerance: float) -> bool:
    """Whether it is the gradient that the holder computed, as it is."""
    return abs(column.applied - own) <= tolerance * abs(own)


def _as_shard(record: StepRecord, once: bool) -> StepRecord:
    """As of a wrapper that shards, without what a rank's own sample leaves open.

    ``once``: one rank holds each parameter, so that the norms of the ranks add up.
    """
    micro_batches = [
        replace(each, missing={f: why for f, why in each.missing.items() if f != "rescaled"})
        for each in record.micro_batches
    ]
    return replace(record, micro_batches=micro_batches, sharded=once)
