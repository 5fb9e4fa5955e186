"""Compares the gradient coordinates of the ranks: equal, in one ratio, or changed alike."""

from __future__ import annotations

from collections.abc import Sequence

from gradledger_monitor.ingest.schema import Samples

Rows = list[list[float]]  # of each rank, its coordinates
MIN_COORDINATES = 3  # that are not zero: any two numbers have a ratio


def values_of(samples: Sequence[Samples]) -> tuple[Rows, Rows]:
    """The sampled gradients of each rank after backward, and when the optimizer steps."""
    before = [[float(v) for v in s.after_backward] for s in samples]
    return before, [[float(v) for v in s.at_step] for s in samples]


def common_scales(before: Rows, after: Rows, tolerance: float) -> tuple[tuple[float, ...], int]:
    """The number of coordinates at which the ranks hold one value, up to a factor of each rank.

    And those factors, relative to the first rank; of the largest set of such coordinates. A set
    whose values were in one ratio before, too, shows no combination.
    """
    best: tuple[tuple[float, ...], int] = ((), 0)
    columns = [c for c in zip(*after, strict=True) if all(c)]
    for column in columns:
        scales = tuple(value / column[0] for value in column)
        members = [
            index
            for index, values in enumerate(zip(*after, strict=True))
            if all(values)
            and all(
                abs(v - s * values[0]) <= tolerance * abs(v)
                for v, s in zip(values, scales, strict=True)
            )
        ]
        if len(members) > max(best[1], MIN_COORDINATES - 1):
            rows = [[row[index] for index in members] for row in before]
            if any(ratio(row, rows[0], tolerance) is None for row in rows):
                best = scales, len(members)
    return best


def count_combined(before: Rows, after: Rows, tolerance: float) -> int:
    """Coordinates that differed between the ranks, and are equal afterwards but not zero."""
    columns = zip(zip(*before, strict=True), zip(*after, strict=True), strict=True)
    return sum(
        any(b) and are_equal(b, tolerance) and not are_equal(a, tolerance) for a, b in columns
    )


def clusters_of(rows: Rows, tolerance: float) -> list[list[int]]:
    """The rows by their index; those that are multiples of each other are together."""
    clusters: list[list[int]] = []
    for index, row in enumerate(rows):
        for cluster in clusters:
            if ratio(row, rows[cluster[0]], tolerance) is not None:
                cluster.append(index)
                break
        else:
            clusters.append([index])
    return clusters


def ratio(values: list[float], reference: list[float], tolerance: float) -> float | None:
    """The one number by which ``reference`` is multiplied in ``values``; None if there is none."""
    pairs = list(zip(values, reference, strict=True))
    ratios = [v / r for v, r in pairs if r]
    if len(ratios) < MIN_COORDINATES or not ratios[0] or any(v and not r for v, r in pairs):
        return None
    return ratios[0] if are_equal(ratios, tolerance) else None


def are_equal(values: Sequence[float], tolerance: float) -> bool:
    return max(values) - min(values) <= tolerance * max(map(abs, values))
