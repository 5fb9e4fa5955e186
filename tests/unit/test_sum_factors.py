"""By what an all-reduce multiplied its values, if it combined equal ones."""

from __future__ import annotations

import math

import pytest

from gradledger.capture.async_copy import Deferred
from gradledger.capture.open_parts import Summed, sum_factor, sums_of

VALUES = [1.0, -2.0, 0.0, 3.0, 4.0]


def test_one_factor_is_that_of_equal_values() -> None:
    assert sum_factor(VALUES, [2 * value for value in VALUES]) == 2
    assert sum_factor(VALUES, VALUES) == 1


@pytest.mark.parametrize("after", [[1.0, -2.0, 5.0, 3.0, 4.0], [2.0, -2.0, 0.0, 3.0, 4.0]])
def test_any_other_change_adds_up_different_values(after: list[float]) -> None:
    assert sum_factor(VALUES, after) == 0
    assert sum_factor([0.0] * 5, after) == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([1.0, 0.0, 0.0], [2.0, 0.0, 0.0], id="any two numbers have a ratio"),
        pytest.param([0.0] * 8, [0.0] * 8, id="zeros"),
        pytest.param(VALUES, [math.inf] * 5, id="not finite"),
        pytest.param(VALUES, VALUES[:2], id="another number of them"),
    ],
)
def test_too_little_shows_nothing(before: list[float], after: list[float]) -> None:
    assert math.isnan(sum_factor(before, after))


def test_values_that_were_not_copied_are_left_out() -> None:
    late, values = Deferred.of([]), Deferred.of(VALUES)
    late._values = None
    summed = [Summed(values, values, []), Summed(values, late, []), Summed(values, values, [late])]
    assert sums_of(summed) == {"sums": [1], "sum_scales": []}


def test_what_a_function_does_to_the_sum_is_part_of_the_factor_on_equal_values() -> None:
    values, halves = Deferred.of(VALUES), Deferred.of([value / 2 for value in VALUES])
    twice = Deferred.of([value * 2 for value in VALUES])
    summed = [Summed(values, twice, [values]), Summed(values, twice, [])]
    assert sums_of(summed) == {"sums": [1, 2], "sum_scales": []}
    others = Deferred.of([value * (i + 1) for i, value in enumerate(VALUES)])
    of_parts = [Summed(values, others, [others]), Summed(others, values, [halves])]
    of_parts += [Summed(others, values, [values], 4), Summed(others, values, [])]
    sums, scales = sums_of(of_parts).values()
    of_mean = Summed(others, values, [halves], both_ways=True)
    assert sums_of([of_mean]) == {"sums": [0], "sum_scales": []}
    assert sums == [0] * 4 and scales[:3] == [1, 0.5, 0.25] and math.isnan(scales[3])


def test_what_the_sum_is_no_multiple_of_leaves_the_factor_open() -> None:
    values = Deferred.of(VALUES)
    others = Deferred.of([value * (i + 1) for i, value in enumerate(VALUES)])
    assert sums_of([Summed(others, values, [others])]) == {"sums": [0], "sum_scales": []}
