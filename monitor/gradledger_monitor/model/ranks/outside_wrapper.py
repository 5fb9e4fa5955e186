"""What a loop did to the gradients of parameters outside the DDP or FSDP2 wrapper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.clipping import clip_coefficient, clipping_of_window
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.manual_all_reduce import (
    ManualAllReduce,
    RecordsByRank,
    sum_of,
    tolerance_of,
)
from gradledger_monitor.model.ranks.rows import MIN_COORDINATES, are_equal, ratio, values_of

# Where the loop communicates after backward.
OUTSIDE_UNSEEN = (
    "whether the loop averages the gradients of parameters outside the wrapper was not seen"
)
OUTSIDE_DIFFERENT = (
    "the ranks' gradients of parameters outside the wrapper differ when they are updated"
)
OUTSIDE_NO_SUM = "the gradients of parameters outside the wrapper were combined, but not as a sum"
OUTSIDE_SCALED = (
    "the loop multiplies the gradients of parameters outside the wrapper by another factor "
    "than the rest"
)


def with_outside(records: RecordsByRank, all_reduce: ManualAllReduce | None) -> RecordsByRank:
    """The records, with what a loop did to the gradients of parameters outside the wrapper.

    ``post_factor`` is that of the wrapper's if the loop averages the others as it does. If it
    divides their sum by R times or 1/R times as much, ``divisors`` states both. Otherwise the
    factor is not known.
    """
    rows = list(records.values())
    if all_reduce is not None or not all(_combines_outside(r) for r in rows):
        return records
    fit = _fit_outside(rows)
    if isinstance(fit, str):
        missing = {"post_factor": fit}
        return {
            rank: replace(r, post_factor=None, changed=False, missing=r.missing | missing)
            for rank, r in records.items()
        }
    factor, excess = fit
    divisors = [] if excess is None else [float(len(rows)), len(rows) / excess]
    return {
        rank: replace(r, post_factor=factor, changed=False, divisors=divisors)
        for rank, r in records.items()
    }


def _combines_outside(record: StepRecord) -> bool:
    if record.wrapper not in ("ddp", "fsdp2") or record.sync != "averaged" or record.skipped:
        return False
    # DDP models over different ranks, or copies of a sharded model
    unknown = "replica" in record.missing or record.divisors or record.data_group
    return bool(record.outside and record.collectives_after and not unknown)


def _fit_outside(rows: Sequence[StepRecord]) -> tuple[float, float | None] | str:
    """The factor after backward, and R or 1/R if the others are larger by it; or why not known.

    Gradients that DDP has averaged have the same bits on every rank, others do not. Those that
    FSDP2 has averaged are other shards on every rank, also when they are applied.
    """
    samples = [r.samples for r in rows if r.samples is not None]
    before, after = values_of(samples)
    if len(samples) < len(rows) or len({len(values) for values in before + after}) != 1:
        return OUTSIDE_UNSEEN
    if not all(math.isfinite(v) for values in before + after for v in values):
        return "the sampled gradients are not finite"
    tolerance = tolerance_of(rows)
    columns = range(len(after[0]))
    equal = [i for i in columns if are_equal([row[i] for row in after], tolerance)]
    if len(equal) < len(columns) and not rows[0].sharded:
        return OUTSIDE_DIFFERENT
    outside = [i for i in equal if len({row[i] for row in before}) > 1]
    wrapped = [i for i in columns if i not in outside]
    of_all_ranks = [value for row in after for value in _at(wrapped, row)]
    own_before = [value for row in before for value in _at(wrapped, row)]
    factor = ratio(of_all_ranks, own_before, tolerance)
    if factor is None or len(outside) < MIN_COORDINATES:
        return OUTSIDE_UNSEEN
    own = [_at(outside, row) for row in before]
    combined = sum_of(own, _at(outside, after[0]), tolerance).factor
    if combined is None:
        return OUTSIDE_NO_SUM
    excess = combined * len(rows) / factor
    if abs(excess - 1) <= tolerance:
        return factor, None
    clipped_alike = all(map(_clips_all, rows))
    for by_ranks in (len(rows), 1 / len(rows)):
        if abs(excess / by_ranks - 1) <= tolerance and clipped_alike:
            return factor, by_ranks
    return OUTSIDE_SCALED


def _clips_all(record: StepRecord) -> bool:
    """Whether each clip, if there is one, was of all gradients: the norm that is left shows it."""
    if clipping_of_window(record) == 1:
        return True
    norm, clips = number(record.norm), [e for e in record.events if e.op == "clip_norm"]
    if norm is None or len(clips) != 1:
        return False
    left = (number(clips[0].norm) or 0.0) * clip_coefficient(clips[0])
    return abs(left - norm) <= tolerances.SAMPLE * norm


def _at(columns: Iterable[int], row: list[float]) -> list[float]:
    return [row[column] for column in columns]
