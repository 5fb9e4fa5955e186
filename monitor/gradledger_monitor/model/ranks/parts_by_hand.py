"""Ranks that hold parts of one model, by hand: tensor parallelism with all-reduces in autograd
functions.

Ranks of a tensor-parallel group compute the same losses of the same data, although they hold
different parameters: they exchange activations. Each all-reduce inside their backwards then adds up
different values, the parts of one gradient. What has the same values on all ranks must not be added
up: that multiplies the gradient by the number of ranks. A function that divides the
sum is right if its forward is a mean over the ranks, or if what follows makes up for it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import Number, StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.clipping import clipping_of_window
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.held_in_parts import have_same_tokens
from gradledger_monitor.model.ranks.manual_all_reduce import (
    ManualAllReduce,
    RecordsByRank,
    tolerance_of,
)
from gradledger_monitor.model.ranks.rows import MIN_COORDINATES, are_equal, values_of

ADDED_UP_AGAIN = (
    "the ranks hold parts of one model, and the loop adds up gradients over them that are equal on "
    "all of them"
)


def as_members(records: RecordsByRank, world_size: int) -> RecordsByRank:
    """The records, with the groups of ranks that hold one model, and its peers in other groups.

    As they are if that is not shown.
    """
    if not 1 < world_size == len(records) or not all(map(_combines_parts, records.values())):
        return records
    groups: dict[tuple[float, ...], list[int]] = {}
    for rank, record in sorted(records.items()):
        groups.setdefault(_losses_and_data(record), []).append(rank)
    sizes = {len(ranks) for ranks in groups.values()}
    if sizes == {1} or len(sizes) > 1 or () in groups:
        return records
    if len(groups) == 1 and any(map(_may_mix_parts, records.values())):
        return records
    changed = dict(records)
    for ranks in groups.values():
        for index, rank in enumerate(ranks):
            peers = [others[index] for others in groups.values()]
            changed[rank] = _of_group(records[rank], ranks, peers)
    return changed


def _of_group(record: StepRecord, ranks: list[int], peers: list[int]) -> StepRecord:
    """Without collectives that are those of activations.

    Before it is seen what hooks of the parameters do, they may be those of groups, too.
    """
    batches = record.micro_batches
    if len(peers) == 1 or record.before_hooks:
        batches = [replace(each, collectives=0) for each in batches]
    return replace(record, tensor_group=ranks, data_group=peers, micro_batches=batches)


def _combines_parts(record: StepRecord) -> bool:
    """Whether all that communicates inside the backwards is all-reduces of different values.

    They are sampled in the first backward of a window. The others must run as many. What averages
    equal values leaves them as they are.
    """
    described = record.wrapper or record.tensor_group or record.data_group or record.pipeline
    sums = record.micro_batches[0].sums if record.micro_batches else []
    return not (described or record.skipped or any(map(_multiplies, sums))) and all(
        m.collectives == len(sums) > 0 for m in record.micro_batches
    )


def _multiplies(value: Number) -> bool:
    factor = number(value)
    return bool(factor) and not are_equal([factor or 0.0, 1.0], tolerances.SAMPLE_HALF)


def holders_of_parts(records: RecordsByRank, group: Sequence[int]) -> RecordsByRank:
    """The records of the ranks that hold the model of ``group`` in parts, by hand, if it is one
    rank; else none."""
    shown = records.get(group[0]) if len(group) == 1 else None
    if shown is None or shown.wrapper or not any(m.sums for m in shown.micro_batches):
        return {}
    return {rank: records[rank] for rank in shown.tensor_group if rank in records}


def scales_of_parts(record: StepRecord) -> list[float]:
    """What functions inside backward multiply sums of parts by, those that are known and not 1.

    Only of ranks without a wrapper that hold parts of one model.
    """
    if record.wrapper or len(record.tensor_group) < 2:
        return []
    pairs = (p for m in record.micro_batches for p in zip(m.sums, m.sum_scales, strict=False))
    scales = [float(scale) for factor, scale in pairs if number(factor) == 0]
    measured = [scale for scale in scales if math.isfinite(scale)]
    return [scale for scale in measured if not are_equal([scale, 1.0], tolerances.SAMPLE_HALF)]


def added_up_twice(record: StepRecord) -> int | None:
    """The number of ranks, where an autograd function adds up the parts of a gradient over them,
    and then the sum once more: that multiplies it by the number, and nothing in it divides."""
    pairs = [
        (s, scale)
        for m in record.micro_batches
        for s, scale in zip(m.sums, m.sum_scales, strict=False)
    ]
    for (first, passed_on), (again, after) in itertools.pairwise(pairs):
        factor = number(again) or 0.0
        whole = round(factor) if math.isfinite(factor) else 0
        multiplied = [float(passed_on) / max(whole, 1), factor / max(whole, 1), float(after), 1.0]
        if number(first) == 0 and whole > 1 and are_equal(multiplied, tolerances.SAMPLE_HALF):
            return whole
    return None


def added_up_again(records: RecordsByRank) -> ManualAllReduce | None:
    """What the loop did after backward, if it added up gradients that were equal on all ranks.

    Only if all that the backwards combine is parts of one gradient, which no function scales: those
    of what all ranks hold are whole then, as are those of what each rank holds alone.
    """
    rows = list(records.values())
    if not (have_same_tokens(rows) and all(map(_combines_parts, rows))):
        return None
    samples = [row.samples for row in rows if row.samples is not None]
    if len(samples) < len(rows) or any(m.sum_scales for row in rows for m in row.micro_batches):
        return None
    before, at_step = values_of(samples)
    if len({len(values) for values in before + at_step}) > 1:
        return None
    tolerance = tolerance_of(rows)
    clippings = map(clipping_of_window, rows)
    applied = [[v / c for v in row] for row, c in zip(at_step, clippings, strict=True)]
    columns = zip(zip(*before, strict=True), zip(*applied, strict=True), strict=True)
    shown = [(then, now) for then, now in columns if any(then) or any(now)]
    unchanged = [then for then, now in shown if _is_times(1, then, now, tolerance)]
    added = [then for then, now in shown if _is_times(len(rows), then, now, tolerance)]
    parts = [then for then in unchanged if not are_equal(then, tolerance)]
    equal = [then for then in added if are_equal(then, tolerance)]
    if min(len(parts), len(equal)) < MIN_COORDINATES or len(unchanged) + len(equal) < len(shown):
        return None
    return ManualAllReduce(reason=ADDED_UP_AGAIN, unequal=(1.0, float(len(rows))))


def _is_times(factor: int, then: Sequence[float], now: Sequence[float], tolerance: float) -> bool:
    pairs = zip(then, now, strict=True)
    return all(are_equal([factor * before, after], tolerance) for before, after in pairs)


def _may_mix_parts(record: StepRecord) -> bool:
    """Whether the loop may have combined gradients of different parameters after backward."""
    return bool(record.collectives_after) and record.post_factor is None


def _losses_and_data(record: StepRecord) -> tuple[float, ...]:
    """Empty if a loss was not measured, or none depends on the data.

    Of a function that hides its targets, equal losses in all micro-batches show equal data.
    """
    batches = record.micro_batches
    losses = [loss for m in batches if (loss := number(m.loss)) is not None]
    constant = all(batch.constant_target for batch in batches)
    if len(losses) < len(batches) or constant:
        return ()
    return (*losses, *(number(m.fingerprint) or 0.0 for m in batches))
