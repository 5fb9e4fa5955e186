"""By what a loop multiplied the ranks' gradients: those of each rank, or of some parameters."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gradledger_monitor.model.token_ledger import total

# The part of a rank's gradient that no other rank's has, at least, for its factor to be known. A
# relative error of the samples grows by up to the reciprocal.
INDEPENDENT = 0.02
NO_SUM = "the ranks' gradients were combined, but not as a sum"
CANCELS = 0.1  # below this share of its parts, a sum does not show what it was multiplied by


class LeftOut(NamedTuple):
    """A rank, and the coordinates at which it is not in the sum of the others, and is in it."""

    rank: int
    without: frozenset[int]
    within: frozenset[int]


def rank_factors(
    gradients: Sequence[Sequence[float]], applied: Sequence[float], tolerance: float, spare: int
) -> tuple[float, ...]:
    """The c_r, if ``applied`` is the sum of c_r times rank r's gradient; else empty.

    ``gradients``: of each rank, the coordinates of ``applied``. ``spare``: how many more of these
    are needed than there are ranks, because as many factors as coordinates always fit. Empty, too,
    if gradients nearly depend on each other, which leaves open which rank has which factor, and if
    a factor is negative: no loop gives tokens a negative weight by their rank.

    Modified Gram-Schmidt with ``applied`` as one more column (Golub and Van Loan, Matrix
    Computations, 5.2.8): what is left of it must be rounding. Each column is first divided by its
    largest number, since the square of a very large or very small gradient is no longer a float.
    """
    columns = [each for each in zip(*gradients, applied, strict=True) if any(each)]
    if len(columns) < len(gradients) + spare:
        return ()
    rows = [list(row) for row in zip(*columns, strict=True)]
    largest = [max(map(abs, row)) for row in rows]
    if not all(largest):
        return ()
    unit = [[value / most for value in row] for row, most in zip(rows, largest, strict=True)]
    factors, left = _solve(unit)
    # one whose share of the sum is rounding is that of a rank which was left out
    factors = [0.0 if abs(factor) <= tolerance else factor for factor in factors]
    sizes = [total(map(abs, map(operator.mul, factors, c))) for c in zip(*unit[:-1], strict=True)]
    if not factors or any(abs(v) > tolerance * n for v, n in zip(left, sizes, strict=True)):
        return ()
    factors = [f / most * largest[-1] for f, most in zip(factors, largest[:-1], strict=True)]
    return tuple(factors) if all(f >= 0 and math.isfinite(f) for f in factors) else ()


def two_factors(
    gradients: Sequence[Sequence[float]], applied: Sequence[float], tolerance: float, least: int
) -> tuple[float, float] | None:
    """The two numbers of which each coordinate of ``applied`` is one times the sum of the ranks'.

    The smaller one first; None if another number of them fits, or one by fewer than ``least``.
    """
    parts = list(zip(*gradients, strict=True))
    rest = [(a, total(p), total(map(abs, p))) for a, p in zip(applied, parts, strict=True)]
    factors: list[float] = []
    for _ in range(2):
        shown = [row for row in rest if row[2] and abs(row[1]) >= CANCELS * row[2]]
        if not shown:
            return None
        value, in_sum, _size = max(shown, key=lambda row: abs(row[1]) / row[2])
        factor = value / in_sum
        others = [
            (a, s, z) for a, s, z in rest if abs(a - factor * s) > tolerance * abs(factor) * z
        ]
        if factor <= 0 or sum(row not in others for row in shown) < least:
            return None
        factors.append(factor)
        rest = others
    return None if rest else (min(factors), max(factors))


def of_each_coordinate(
    gradients: Sequence[Sequence[float]], applied: Sequence[float], tolerance: float, least: int
) -> str:
    """What ``applied`` is of each coordinate over the ranks, times one number; else nothing.

    At fewer than ``least`` coordinates, it may be what a single rank has.
    """
    columns = list(zip(*gradients, strict=True))
    operations: dict[str, Callable[[Sequence[float]], float]]
    operations = {"maximum": max, "minimum": min, "product": math.prod}
    for name, operation in operations.items():
        values = [operation(column) for column in columns]
        sizes = [abs(value) for value in values]
        differ = (
            sum(v not in (0.0, own) for v, own in zip(values, row, strict=True))
            for row in gradients
        )
        if max(sizes) and min(differ) >= least:
            factor, _ = least_squares(applied, values, sizes, tolerance)
            if factor is not None and factor > 0:
                return name
    return ""


def rank_left_out(
    gradients: Sequence[Sequence[float]], applied: Sequence[float], tolerance: float, least: int
) -> LeftOut | None:
    """The rank that is in the sum at some coordinates, and at all others is not; None if unproved.

    Both at ``least`` coordinates or more that show it, and times one number.
    """
    columns = list(zip(*gradients, applied, strict=True))
    for rank in range(len(gradients)):
        sums = [total(column[:-1]) for column in columns]
        without = [s - column[rank] for s, column in zip(sums, columns, strict=True)]
        sizes = [total(map(abs, column[:-1])) for column in columns]
        ratios = sorted(
            a / s for a, s, z in zip(applied, sums, sizes, strict=True) if abs(s) > CANCELS * z
        )
        for factor in {ratios[len(ratios) * i // 4] for i in (1, 2, 3)} if ratios else ():
            fits = [
                [
                    abs(a - factor * s) <= tolerance * abs(factor) * z
                    for a, s, z in zip(applied, each, sizes, strict=True)
                ]
                for each in (sums, without)
            ]
            inside, outside = (
                frozenset(i for i, (own, other) in enumerate(zip(*p, strict=True)) if own > other)
                for p in (fits, fits[::-1])
            )
            enough = min(len(inside), len(outside)) >= least
            if factor > 0 and all(map(any, zip(*fits, strict=True))) and enough:
                return LeftOut(rank, outside, inside)
    return None


def least_squares(
    applied: Sequence[float], sums: Sequence[float], sizes: Sequence[float], tolerance: float
) -> tuple[float | None, str]:
    """c = (sum of y * s) / (sum of s * s) over the coordinates, if it fits each; or why not.

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
        return None, NO_SUM
    if not factor or not math.isfinite(factor):
        return None, "the ranks' gradients differ too much in size to be compared"
    return factor, ""


def _solve(unit: list[list[float]]) -> tuple[list[float], list[float]]:
    """The factors of all rows but the last, and what is left of the last; none if they depend."""
    rest = [list(row) for row in unit]
    shares: list[list[float]] = []  # of each row in the later ones
    for index, row in enumerate(rest[:-1]):
        later, square = rest[index + 1 :], total(v * v for v in row)
        if square < INDEPENDENT**2 * total(v * v for v in unit[index]):
            return [], rest[-1]
        shares.append([total(map(operator.mul, row, other)) / square for other in later])
        for other, share in zip(later, shares[-1], strict=True):
            other[:] = [o - share * v for o, v in zip(other, row, strict=True)]
    factors: list[float] = []
    for own in reversed(shares):
        factors.insert(0, own[-1] - total(map(operator.mul, own[:-1], factors)))
    return factors, rest[-1]
