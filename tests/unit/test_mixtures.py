"""What the ranks' models became between two steps."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from gradledger_monitor.model.ranks.mixtures import (
    adds_changes_up,
    centre_moves,
    changes_of,
    drawn_together,
    is_outer_step,
    keep_mean,
    mixture_of,
)

RANKS, COORDINATES = 4, 16
SHARES = [1 / RANKS] * RANKS
DRIFT = 1e-3  # of the models between two averages


def models(seed: int, drift: float = DRIFT) -> list[list[float]]:
    numbers = random.Random(seed)
    start = [numbers.gauss(0, 1) for _ in range(COORDINATES)]
    return [[v + drift * numbers.gauss(0, 1) for v in start] for _ in range(RANKS)]


def weighted(rows: list[list[float]], *weights: float) -> list[float]:
    return [sum(w * v for w, v in zip(weights, c, strict=True)) for c in zip(*rows, strict=True)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((0.25, 0.25, 0.25, 0.25), "average"),
        ((0.1, 0.2, 0.3, 0.4), "average"),
        ((0.0, 0.5, 0.0, 0.5), "average"),
        ((0.0, 1.0, 0.0, 0.0), "copy"),
        ((0.0, 0.9999, 0.0, 0.0), "copy"),  # with a weight decay of the loop
        ((1.0, 1.0, 1.0, 1.0), "average"),  # which is not divided
        ((0.5, 0.5, 0.5, 0.5), "other"),
    ],
)
def test_what_models_became(seed: int, weights: tuple[float, ...], expected: str) -> None:
    rows = models(seed)
    row = weighted(rows, *weights)
    assert mixture_of(rows, [row] * RANKS) == expected


def pairs(rows: list[list[float]]) -> list[list[float]]:
    """Gossip: two pairs of ranks average their models."""
    halves = [weighted(rows[i : i + 2], 0.5, 0.5) for i in (0, 2)]
    return [halves[0], halves[0], halves[1], halves[1]]


def halfway(rows: list[list[float]]) -> list[list[float]]:
    mean = weighted(rows, *[0.25] * RANKS)
    return [[(v + m) / 2 for v, m in zip(row, mean, strict=True)] for row in rows]


@pytest.mark.parametrize("mix", [pairs, halfway])
def test_ranks_that_exchange_models_keep_their_average(mix: Any) -> None:
    rows = models(0)
    assert keep_mean(rows, mix(rows))
    body = [new[:8] + old[8:] for new, old in zip(mix(rows), rows, strict=True)]
    assert keep_mean(rows, body)  # a fragment, as in streaming DiLoCo


def drawn(rows: list[list[float]], centre: list[float], part: float = 0.2) -> list[list[float]]:
    """Each rank is drawn to the centre alone."""
    return [[v - part * (v - c) for v, c in zip(row, centre, strict=True)] for row in rows]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("part", [0.02, 0.2, 1.0])
def test_a_centre_that_moves_is_one_that_the_ranks_exchange(seed: int, part: float) -> None:
    """Elastic averaging: a decay to the weights at the start has one that stays."""
    start = models(seed, drift=0.0)[0]
    moved = models(seed)[0]
    first, second = models(seed), [[v + DRIFT for v in row] for row in models(seed)]
    earlier = drawn_together(first, drawn(first, start, part))
    again = drawn_together(second, drawn(second, start, part))
    other = drawn_together(second, drawn(second, moved, part))
    assert earlier and again and other
    assert earlier.remaining == pytest.approx(1 - part, abs=1e-6)
    assert not centre_moves(earlier.centres, again, second)
    assert centre_moves(earlier.centres, other, second)
    assert not centre_moves([], other, second)


@pytest.mark.parametrize("seed", range(5))
def test_ranks_that_are_drawn_to_centres_of_their_own_exchange_nothing(seed: int) -> None:
    """As by an average of the weights over time, which each rank has for itself."""
    rows, centres = models(seed), models(seed + 1)
    after = [drawn([row], centre)[0] for row, centre in zip(rows, centres, strict=True)]
    assert drawn_together(rows, after) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v,
        lambda v: v * 0.999,
        lambda v: max(-0.5, min(0.5, v)),
        lambda v: v - 1e-3 * math.copysign(1, v),
    ],
)
def test_what_each_rank_does_to_its_model_is_no_exchange(change: Any) -> None:
    rows = models(0)
    assert not keep_mean(rows, [[change(v) for v in row] for row in rows])


def test_models_that_another_one_replaces_are_no_average() -> None:
    rows = models(0)
    assert mixture_of(rows, [models(1)[0]] * RANKS) == "other"
    assert mixture_of(rows, rows) is None


def test_differences_within_rounding_show_no_average() -> None:
    rows = models(0, drift=1e-7)
    assert mixture_of(rows, [weighted(rows, *[0.25] * RANKS)] * RANKS) != "average"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("momentum", "nesterov", "first"),  # first: the outer step that shows it
    [(0.0, False, 2), (0.9, False, 3), (0.9, True, 3)],
)
def test_outer_steps_of_sgd_are_recognised(
    seed: int, momentum: float, nesterov: bool, first: int
) -> None:
    model, buffer = [0.0] * COORDINATES, [0.0] * COORDINATES
    earlier: list[list[float]] = []
    for number in range(1, 6):
        rows = [
            [m + d for m, d in zip(model, drift, strict=True)]
            for drift in models(100 * seed + number)
        ]
        change = [m - sum(c) / RANKS for m, c in zip(model, zip(*rows, strict=True), strict=True)]
        buffer = [momentum * b + c for b, c in zip(buffer, change, strict=True)]
        step = [c + momentum * b for c, b in zip(change, buffer, strict=True)]
        moves = step if nesterov else buffer
        model = [m - 0.7 * v for m, v in zip(model, moves, strict=True)]
        assert is_outer_step(rows, model, earlier) is (number >= first)
        earlier = changes_of(rows, model, earlier)


@pytest.mark.parametrize("seed", range(5))
def test_checkpoints_that_all_ranks_load_are_no_outer_steps(seed: int) -> None:
    """Of the first rank, and of half of the time since the last one."""
    model, earlier = models(seed)[0], list[list[float]]()
    for number in range(1, 6):
        numbers = random.Random(100 * seed + number)
        drifts = [[DRIFT * numbers.gauss(0, 1) for _ in model] for _ in range(RANKS)]
        rows = [[m + d for m, d in zip(model, drift, strict=True)] for drift in drifts]
        model = [m + 0.5 * d for m, d in zip(model, drifts[0], strict=True)]
        assert not is_outer_step(rows, model, earlier)
        earlier = changes_of(rows, model, earlier)
        assert not is_outer_step(rows, model, earlier)  # the same one again


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_models_that_have_diverged_show_nothing(value: float) -> None:
    rows = [[value, *each[1:]] for each in models(0)]
    assert mixture_of(rows, [rows[0]] * RANKS) is None


def test_outer_steps_of_other_parameters_are_not_compared() -> None:
    rows = models(0)
    earlier = changes_of(rows, rows[0], changes_of(rows, rows[1], []))
    shorter = [row[:8] for row in rows]
    assert not is_outer_step(shorter, shorter[0], earlier)
    assert changes_of(shorter, shorter[0], earlier) == [shorter[0]]


@pytest.mark.parametrize(("factor", "expected"), [(RANKS, True), (1, False), (RANKS / 2, False)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_changes_of_all_ranks_may_be_added_up(
    factor: float, expected: bool, momentum: float
) -> None:
    numbers = random.Random(1)
    row = [numbers.gauss(0, 1) for _ in range(COORDINATES)]
    earlier: list[list[float]] = []
    step = [0.0] * COORDINATES
    for _ in range(3):
        before = [[v + DRIFT * numbers.gauss(1, 1) for v in row] for _ in range(RANKS)]
        average = weighted([[b - v for b, v in zip(e, row, strict=True)] for e in before], *SHARES)
        step = [factor * a + momentum * s for a, s in zip(average, step, strict=True)]
        after = [v + s for v, s in zip(row, step, strict=True)]
        added_up = adds_changes_up(before, after, earlier)
        row, earlier = after, changes_of(before, after, earlier)
    assert added_up is expected


def test_changes_that_one_rank_each_has_made_are_joined() -> None:
    numbers = random.Random(1)
    row = [numbers.gauss(0, 1) for _ in range(COORDINATES)]
    before = [[v + DRIFT * (i % RANKS == r) for i, v in enumerate(row)] for r in range(RANKS)]
    assert not adds_changes_up(before, [v + DRIFT for v in row], [row])
