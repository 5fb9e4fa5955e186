"""What the ranks' models became, where all of them became equal between two steps.

Unlike gradients, parameters of the ranks are nearly equal. The differences between the ranks, which
are far above the rounding of parameters, distinguish their average from a copy of one rank's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gradledger_monitor.model.ranks.rows import MIN_COORDINATES, Rows
from gradledger_monitor.model.ranks.weighted_sum import rank_factors
from gradledger_monitor.model.token_ledger import total

Mixture = Literal["average", "copy", "other"]

ROUNDING = 2e-6  # relative error of an average in fp32
SHOWS = 10 * ROUNDING  # relative difference that shows where between the ranks a value is
SHARE = 0.05  # of the difference between ranks
EXACT = 0.01  # relative error of an outer step, which is far above the rounding of parameters
SMALLEST = 0.02  # weight of a rank in an average, of all ranks
LARGE = 1e100  # parameters whose sums may overflow
NEAR = 0.25  # of the distance to the next rank: nearer is a copy that was rounded or scaled


def mixture_of(before: Rows, after: Rows) -> Mixture | None:
    """``before`` and ``after``: sampled parameters of each rank; None if they differ afterwards."""
    row = after[0]
    if not all(abs(v) < LARGE for each in before + after for v in each):
        return None
    if not all(_is_same(each, row) for each in after):
        return None
    if any(_is_same(each, row) for each in before):
        return "copy"
    # a sum, or an average that is divided again, is meant to be one: another rule reports it
    multiples = ([v * n for v in row] for n in (1, len(before), 1 / len(before)))
    if any(_is_mean(before, each) for each in multiples) or _is_weighted(before, row):
        return "average"
    return "copy" if _is_near_one(before, row) else "other"


def keep_mean(before: Rows, after: Rows) -> bool:
    """Whether all models changed, and not their average: ranks have exchanged what they have.

    Pairs that average theirs do this (gossip), and an average that arrives some steps later. A
    decay, a limit or a checkpoint changes the average, too.
    """
    changed = 0
    for then, now in zip(zip(*before, strict=True), zip(*after, strict=True), strict=True):
        size, spread = max(map(abs, then)), max(then) - min(then)
        change = max(map(abs, _difference(now, then)))
        moved = abs(total(now) - total(then)) / len(then)
        if not moved <= SHARE * change + ROUNDING * size < LARGE:
            return False
        if spread > SHOWS * size:
            if change <= SHOWS * size:
                return False
            changed += 1
    return changed >= MIN_COORDINATES


def is_outer_step(before: Rows, row: Sequence[float], earlier: Rows) -> bool:
    """Whether SGD, with or without a momentum, has made ``row`` of the changes of the models.

    ``earlier``: what all models became before that, its change then, and the average change of the
    models that led to it; empty where these are not known. Nesterov's step depends on all three.
    """
    if not earlier or len(earlier[0]) != len(row):  # of other parameters
        return False
    start, *momentum = earlier
    step = _difference(row, start)
    columns = [average_change(before, start)]
    candidates = [columns]
    if momentum:
        last_step, last_change = momentum
        candidates += [[*columns, last_step], [*columns, last_step, [-v for v in last_change]]]
    # each column but the first may have no part in the step, as at a momentum of 0
    factors = (rank_factors(each, step, EXACT, MIN_COORDINATES) for each in candidates)
    return any(each and each[0] > 0 for each in factors)


def average_change(before: Rows, start: Sequence[float]) -> list[float]:
    """By which the models of all ranks have moved away from a common one, on average."""
    return _difference([total(c) / len(c) for c in zip(*before, strict=True)], start)


def changes_of(before: Rows, row: Sequence[float], earlier: Rows) -> Rows:
    """What ``is_outer_step`` needs of this step the next time."""
    if not earlier or len(earlier[0]) != len(row):
        return [list(row)]
    return [list(row), _difference(row, earlier[0]), average_change(before, earlier[0])]


def _is_same(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(
        abs(a - b) <= ROUNDING / 2 * max(abs(a), abs(b)) for a, b in zip(first, second, strict=True)
    )


def _is_mean(before: Rows, row: Sequence[float]) -> bool:
    shown = 0
    for values, value in zip(zip(*before, strict=True), row, strict=True):
        spread, size = max(values) - min(values), max(map(abs, values))
        if abs(value - total(values) / len(values)) > SHARE * spread + ROUNDING * size:
            return False
        shown += spread > SHOWS * size
    return shown >= MIN_COORDINATES


def _is_weighted(before: Rows, row: Sequence[float]) -> bool:
    """Whether at least two ranks have a weight, and the weights of all add up to 1."""
    first = before[0]
    changes = [_difference(each, first) for each in before[1:]]
    factors = rank_factors(changes, _difference(row, first), SHARE, MIN_COORDINATES)
    weights = [1 - total(factors), *factors]
    return bool(factors) and sum(weight >= SMALLEST for weight in weights) > 1


def _is_near_one(before: Rows, row: Sequence[float]) -> bool:
    for index, each in enumerate(before):
        others = before[:index] + before[index + 1 :]
        if _distance(each, row) < NEAR * min(_distance(each, other) for other in others):
            return True
    return False


def _difference(values: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [v - r for v, r in zip(values, reference, strict=True)]


def _distance(first: Sequence[float], second: Sequence[float]) -> float:
    return total(map(abs, _difference(first, second)))
