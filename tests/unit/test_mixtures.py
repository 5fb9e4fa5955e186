"""What the ranks' models became between two steps."""

from __future__ import annotations

import random

import pytest

from gradledger_monitor.model.ranks.mixtures import mixture_of

RANKS, COORDINATES = 4, 16
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


def test_models_that_another_one_replaces_are_no_average() -> None:
    rows = models(0)
    assert mixture_of(rows, [models(1)[0]] * RANKS) == "other"
    assert mixture_of(rows, rows) is None


def test_differences_within_rounding_show_no_average() -> None:
    rows = models(0, drift=1e-7)
    assert mixture_of(rows, [weighted(rows, *[0.25] * RANKS)] * RANKS) != "average"
