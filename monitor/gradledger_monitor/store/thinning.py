"""A long series made short without losing what one looks for: real points, spikes kept (pure).

Whole steps are kept or left out, so that every point drawn can be opened. Of each bucket of
neighbouring steps those stay at which some figure is smallest or largest, and the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Point = Sequence[Any]  # step, time, figures


def bucket_size(points: int, figures: int, max_points: int) -> int:
    """How many neighbouring points make a bucket, so that what stays is at most ``max_points``."""
    buckets = max(max_points // (2 * figures + 1), 1)
    return -(-points // buckets)


def extremes(bucket: Sequence[Point], figures: Sequence[int]) -> list[Point]:
    """The points of one bucket at which a figure in these columns is extreme, and its last."""
    keep = {len(bucket) - 1} | {
        at for column in figures for at in _extremes_of([point[column] for point in bucket])
    }
    return [bucket[at] for at in sorted(keep)]


def _extremes_of(values: list[float | None]) -> tuple[int, ...]:
    measured = [value for value in values if value is not None]
    if not measured:
        return ()
    return values.index(min(measured)), values.index(max(measured))
