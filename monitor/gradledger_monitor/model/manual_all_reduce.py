"""How a loop that synchronises gradients itself combined them, inferred from samples of each rank.

DDP and FSDP average, and need no proof. A loop that all-reduces after backward, or gives DDP its
own comm hook, does: each rank sends a few gradient coordinates as its last backward left them
(``after_backward``) and as the optimizer received them (``at_step``). Rank r's sample is ``x_r``
after backward and ``y_r`` at the step. The ranks combined their gradients if

    y_r is the same on every rank, and        y = c * (sum of x_r over the ranks)

for one number c over all coordinates. c = 1/R is an average, c = 1 a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import Samples, StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.token_ledger import total

MIN_COORDINATES = 3  # that are not zero: any two numbers have a ratio

UNSEEN = "how the ranks' gradients were combined was not seen"

RecordsByRank = dict[int, StepRecord]


@dataclass(frozen=True)
class ManualAllReduce:
    """``factor`` is c; if it is None, ``reason`` is why it is not known."""

    factor: float | None = None
    reason: str = ""


def infer(records: RecordsByRank) -> ManualAllReduce | None:
    """What the loop did, from the records of all ranks; None if it combined nothing itself."""
    rows = list(records.values())
    if all(r.sync != "unknown" for r in rows) or _only_scaled(rows):
        return None
    samples = [r.samples for r in rows if r.samples is not None]
    if len(samples) < len(rows):
        return ManualAllReduce(reason=UNSEEN)
    half = any(r.half_precision for r in rows)
    tolerance = tolerances.SAMPLE_HALF if half else tolerances.SAMPLE
    result = _fit(samples, tolerance)
    averages = result.factor is not None and abs(result.factor * len(rows) - 1) <= tolerance
    if result.factor is None or averages or not any(map(_synced_twice, rows)):
        return result
    return ManualAllReduce(reason="gradients were combined anew on top of combined ones")


def as_averaged(records: RecordsByRank, all_reduce: ManualAllReduce | None) -> RecordsByRank:
    """The records as if DDP had averaged and ``post_factor`` were the rest, c * R.

    If the loop combined nothing, each rank stepped on its own gradients: ``sync`` is "none" then.
    """
    if all_reduce is None:
        if _only_scaled(records.values()):
            return {rank: replace(r, sync="none") for rank, r in records.items()}
        return records
    if all_reduce.factor is None:
        return records
    factor = all_reduce.factor * len(records)
    return {rank: replace(r, sync="averaged", post_factor=factor) for rank, r in records.items()}


def _only_scaled(rows: Iterable[StepRecord]) -> bool:
    """Collectives ran after backward, and yet every rank only scaled its own gradients.

    They may have reduced a loss for a log. If all ranks had equal gradients, they may also have
    combined them, which gives the same weights.
    """
    listed = list(rows)
    inside = any(m.collectives for r in listed for m in r.micro_batches)
    factors = [number(r.post_factor) for r in listed if r.sync == "unknown"]
    return bool(factors) and not inside and all(f and math.isfinite(f) for f in factors)


def _synced_twice(record: StepRecord) -> bool:
    """Whether a comm hook ran on already combined gradients: harmless only for an average."""
    return sum(m.wrapper == "sync" for m in record.micro_batches) > 1


def _fit(samples: list[Samples], tolerance: float) -> ManualAllReduce:
    """c from the samples of each rank. The order of tests decides which reason is reported."""
    after_backward = [[float(v) for v in s.after_backward] for s in samples]
    at_step = [[float(v) for v in s.at_step] for s in samples]
    if len({len(values) for values in after_backward + at_step}) != 1:
        return ManualAllReduce(reason="the ranks sampled different gradients")
    if not all(math.isfinite(v) for values in after_backward + at_step for v in values):
        return ManualAllReduce(reason="the sampled gradients are not finite")
    if not all(_are_equal(coordinate, tolerance) for coordinate in zip(*at_step, strict=True)):
        return ManualAllReduce(reason="the ranks step on different gradients")
    sums = [total(values) for values in zip(*after_backward, strict=True)]
    sizes = [total(map(abs, values)) for values in zip(*after_backward, strict=True)]
    if not all(map(math.isfinite, sizes)):
        return ManualAllReduce(reason="the sampled gradients are too large to add up")
    if sum(map(bool, sizes)) < MIN_COORDINATES:
        return ManualAllReduce(reason="too few of the sampled gradients are not zero")
    return _least_squares(at_step[0], sums, sizes, tolerance)


def _are_equal(values: tuple[float, ...], tolerance: float) -> bool:
    return max(values) - min(values) <= tolerance * max(map(abs, values))


def _least_squares(
    applied: list[float], sums: list[float], sizes: list[float], tolerance: float
) -> ManualAllReduce:
    """c = (sum of y * s) / (sum of s * s) over the coordinates, if it fits each of them.

    A coordinate fits if |y - c * s| <= tolerance * |c| * (sum of |x_r|): a sum ``s`` that cancelled
    is as uncertain as its parts. Both sides are first divided by their largest number, since the
    square of a very large or very small gradient is no longer a float.
    """
    largest, most = max(sizes), max(map(abs, applied))
    scaled = [s / largest for s in sums]
    steps = [a / most if most else 0.0 for a in applied]
    square = total(s * s for s in scaled)
    slope = total(a * s for a, s in zip(steps, scaled, strict=True)) / square if square else 0.0
    rows = zip(steps, scaled, sizes, strict=True)
    factor = slope / largest * most
    if not slope or not all(
        abs(a - slope * s) <= tolerance * abs(slope) * (z / largest) for a, s, z in rows
    ):
        return ManualAllReduce(reason="the ranks' gradients were combined, but not as a sum")
    if not factor or not math.isfinite(factor):
        return ManualAllReduce(reason="the ranks' gradients differ too much in size to be compared")
    return ManualAllReduce(factor)
