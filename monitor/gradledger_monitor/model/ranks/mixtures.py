"""What the ranks' models became, where all of them became equal between two steps.

Unlike gradients, parameters of the ranks are nearly equal. The differences between the ranks, which
are far above the rounding of parameters, distinguish their average from a copy of one rank's.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Literal, NamedTuple

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


def copied_from(before: Rows, after: Rows) -> tuple[int, ...]:
    """The rows from which all ranks took over the values that differed; empty if they did not.

    One row, or several: each rank may step for a part of the parameters, and send these.
    """
    common, differed = set(range(len(before))), 0
    owners: set[int] = set()
    for then, now in _columns(before, after):
        size, spread = max(map(abs, then)), max(then) - min(then)
        if not SHOWS * size < spread < LARGE:
            continue
        differed += 1
        allowed = ROUNDING / 2 * size
        same = {i for i, v in enumerate(then) if all(abs(n - v) <= allowed for n in now)}
        common &= same
        owners |= same if len(same) == 1 else set()
        if not same:
            return ()
    if differed < MIN_COORDINATES:
        return ()
    return (min(common),) if common else tuple(sorted(owners))


class Drawn(NamedTuple):
    """The ranks' values have moved the same part of the way to a centre that is common to them."""

    remaining: float  # the part of the difference between the ranks that is left
    centres: list[float | None]  # of each coordinate; None if it did not change, or shows nothing


def keep_mean(before: Rows, after: Rows) -> bool:
    """Whether what changed of the models has the same average: ranks exchange what they have.

    Pairs that average theirs do this (gossip), and an average that arrives some steps later. A
    decay, a limit or a checkpoint changes the average, too.
    """
    changed = 0
    for then, now in _columns(before, after):
        size, change = max(map(abs, then)), max(map(abs, _difference(now, then)))
        moved = abs(total(now) - total(then)) / len(then)
        if not moved <= SHARE * change + ROUNDING * size < LARGE:
            return False
        changed += _shows_change(then, now)
    return changed >= MIN_COORDINATES


def drawn_together(before: Rows, after: Rows) -> Drawn | None:
    """What drew the ranks' values together by one factor, if anything did: elastic averaging.

    What a rank does alone may do this, too: a decay to 0, or to the weights at the start. Such a
    centre does not move from one time to the next.
    """
    columns = _columns(before, after)
    shown = [_shows_change(then, now) for then, now in columns]
    chosen = [column for column, shows in zip(columns, shown, strict=True) if shows]
    if len(chosen) < MIN_COORDINATES:
        return None
    pairs = [(_deviations(then), _deviations(now)) for then, now in chosen]
    # each coordinate has one vote: those of large parameters do not outweigh the rest
    squares = [total(v * v for v in then) for then, _ in pairs]
    parts = [
        total(map(operator.mul, then, now)) / square
        for (then, now), square in zip(pairs, squares, strict=True)
    ]
    remaining = total(parts) / len(parts)
    if not -ROUNDING <= remaining < 1 - ROUNDING:
        return None
    for (then, _), (deviations, left) in zip(chosen, pairs, strict=True):
        allowed = SHARE * (1 - remaining) * max(map(abs, deviations)) + ROUNDING * max(
            map(abs, then)
        )
        if any(abs(v - remaining * d) > allowed for d, v in zip(deviations, left, strict=True)):
            return None
    return Drawn(
        remaining,
        [
            (total(now) - remaining * total(then)) / len(then) / (1 - remaining) if shows else None
            for (then, now), shows in zip(columns, shown, strict=True)
        ],
    )


def centre_moves(earlier: Sequence[float | None], drawn: Drawn, before: Rows) -> bool:
    """Whether the centre is another one than the last time, in most coordinates of both times."""
    if len(earlier) != len(drawn.centres):
        return False
    moved: list[bool] = []
    for last, centre, values in zip(earlier, drawn.centres, zip(*before, strict=True), strict=True):
        if last is not None and centre is not None:
            spread, size = max(values) - min(values), max(map(abs, values))
            allowed = SHARE * spread + ROUNDING * size / (1 - drawn.remaining)
            moved.append(abs(centre - last) > allowed)
    return sum(moved) >= MIN_COORDINATES and 2 * sum(moved) > len(moved)


def is_outer_step(before: Rows, row: Sequence[float], earlier: Rows) -> bool:
    """Whether SGD, with or without a momentum, has made ``row`` of the changes of the models."""
    return _outer_factor(before, row, earlier) > 0


def adds_changes_up(before: Rows, row: Sequence[float], earlier: Rows) -> bool:
    """Whether ``row`` has the sum of the changes of all ranks' models, undivided.

    Not where each coordinate is changed by one rank alone, whose changes are meant to be joined.
    """
    if abs(_outer_factor(before, row, earlier) / len(before) - 1) > EXACT:
        return False
    changes = zip(*(_difference(each, earlier[0]) for each in before), strict=True)
    by_all = [
        min(map(abs, column)) > max(SHARE * max(map(abs, column)), SHOWS * abs(then))
        for column, then in zip(changes, earlier[0], strict=True)
    ]
    return by_all.count(True) >= MIN_COORDINATES


def _outer_factor(before: Rows, row: Sequence[float], earlier: Rows) -> float:
    """By what SGD multiplies the average change of the models to make ``row`` of it; 0: it did not.

    ``earlier``: what all models became before that, its change then, and the average change of the
    models that led to it; empty where these are not known. Nesterov's step depends on all three.
    """
    if not earlier or len(earlier[0]) != len(row):  # of other parameters
        return 0.0
    start, *momentum = earlier
    step = _difference(row, start)
    columns = [average_change(before, start)]
    candidates = [columns]
    if momentum:
        last_step, last_change = momentum
        candidates += [[*columns, last_step], [*columns, last_step, [-v for v in last_change]]]
    # each column but the first may have no part in the step, as at a momentum of 0
    factors = (rank_factors(each, step, EXACT, MIN_COORDINATES) for each in candidates)
    return next((each[0] for each in factors if each and each[0] > 0), 0.0)


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


def _columns(before: Rows, after: Rows) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    return list(zip(zip(*before, strict=True), zip(*after, strict=True), strict=True))


def _shows_change(then: Sequence[float], now: Sequence[float]) -> bool:
    """Whether a coordinate differs between the ranks and has changed, both beyond rounding."""
    size, spread = max(map(abs, then)), max(then) - min(then)
    change = max(map(abs, _difference(now, then)))
    return SHOWS * size < spread < LARGE and SHOWS * size < change < LARGE


def _deviations(values: Sequence[float]) -> list[float]:
    mean = total(values) / len(values)
    return [v - mean for v in values]


def _difference(values: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [v - r for v, r in zip(values, reference, strict=True)]


def _distance(first: Sequence[float], second: Sequence[float]) -> float:
    return total(map(abs, _difference(first, second)))
