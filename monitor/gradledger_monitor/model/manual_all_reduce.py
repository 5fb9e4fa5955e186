"""How ranks combined their gradients where the loop did it itself, read from what each one sent.

DDP and FSDP average, and are believed. A loop that all-reduces after backward, or gives DDP a comm
hook of its own, is asked for proof: each rank sends a few gradient coordinates as its last backward
left them and as the optimizer got them. They are combined if every rank steps on the same gradient,
and that is one number c times the sum over the ranks of what backward left: 1/R is an average.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import Samples, StepRecord
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.token_ledger import total

# As the hooks compare samples on one rank; relative to the largest that could have cancelled.
UNIFORM = 1e-3
UNIFORM_HALF = 2e-2
FEWEST = 3  # coordinates that are not zero: any two numbers have a ratio

UNSEEN = "how the ranks' gradients were combined was not seen"

Rows = dict[int, StepRecord]


@dataclass(frozen=True)
class Combining:
    """``factor`` is c; where it is None, ``reason`` says why."""

    factor: float | None = None
    reason: str = ""


def by_hand(records: Rows) -> Combining | None:
    """What the loop did, from the records of all ranks; None where it combined nothing itself."""
    rows = list(records.values())
    if all(r.sync != "unknown" for r in rows) or _alone(rows):
        return None
    samples = [r.samples for r in rows if r.samples is not None]
    if len(samples) < len(rows):
        return Combining(reason=UNSEEN)
    tolerance = UNIFORM_HALF if any(r.half_precision for r in rows) else UNIFORM
    found = _fit(samples, tolerance)
    averages = found.factor is not None and abs(found.factor * len(rows) - 1) <= tolerance
    if found.factor is None or averages or not any(map(_synced_again, rows)):
        return found
    return Combining(reason="gradients were combined anew on top of combined ones")


def retold(records: Rows, combining: Combining | None) -> Rows:
    """The records as if DDP had averaged and the loop had done the rest, or each rank was alone."""
    if combining is None:
        if _alone(records.values()):
            return {rank: replace(r, sync="none") for rank, r in records.items()}
        return records
    if combining.factor is None:
        return records
    factor = combining.factor * len(records)
    return {r: replace(x, sync="averaged", post_factor=factor) for r, x in records.items()}


def _alone(rows: Iterable[StepRecord]) -> bool:
    """Collectives ran after backward, and yet every rank only scaled its own gradients.

    They told a loss, say. Where all ranks had the same gradient they may have been combined all
    the same, which then comes to the same weights.
    """
    listed = list(rows)
    inside = any(m.collectives for r in listed for m in r.micro_batches)
    factors = [number(r.post_factor) for r in listed if r.sync == "unknown"]
    return bool(factors) and not inside and all(f and math.isfinite(f) for f in factors)


def _synced_again(record: StepRecord) -> bool:
    """Whether a comm hook ran on what it had combined already: harmless only for an average."""
    return sum(m.wrapper == "sync" for m in record.micro_batches) > 1


def _fit(samples: list[Samples], tolerance: float) -> Combining:
    left = [[float(v) for v in s.after_backward] for s in samples]
    applied = [[float(v) for v in s.at_step] for s in samples]
    if len({len(values) for values in left + applied}) != 1:
        return Combining(reason="the ranks sampled different gradients")
    if not all(math.isfinite(v) for values in left + applied for v in values):
        return Combining(reason="the sampled gradients are not finite")
    if not all(_alike(coordinate, tolerance) for coordinate in zip(*applied, strict=True)):
        return Combining(reason="the ranks step on different gradients")
    sums = [total(values) for values in zip(*left, strict=True)]
    sizes = [total(map(abs, values)) for values in zip(*left, strict=True)]
    if not all(map(math.isfinite, sizes)):
        return Combining(reason="the sampled gradients are too large to add up")
    if sum(map(bool, sizes)) < FEWEST:
        return Combining(reason="too few of the sampled gradients are not zero")
    return _multiple(applied[0], sums, sizes, tolerance)


def _alike(values: tuple[float, ...], tolerance: float) -> bool:
    return max(values) - min(values) <= tolerance * max(map(abs, values))


def _multiple(
    applied: list[float], sums: list[float], sizes: list[float], tolerance: float
) -> Combining:
    """The factor by least squares; a sum that cancelled is as uncertain as its parts.

    Both sides are divided by their largest number first: the square of a very large or very small
    gradient is no longer a float.
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
        return Combining(reason="the ranks' gradients were combined, but not as a sum")
    if not factor or not math.isfinite(factor):
        return Combining(reason="the ranks' gradients differ too much in size to be compared")
    return Combining(factor)
