"""By what a loop multiplied the ranks' gradients: those of each rank, or of some parameters."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from gradledger_monitor.model.token_ledger import total

# The part of a rank's gradient that no other rank's has, at least, for its factor to be known. A
# relative error of the samples grows by up to the reciprocal.
INDEPENDENT = 0.02
CANCELS = 0.1  # below this share of its parts, a sum does not show what it was multiplied by


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
