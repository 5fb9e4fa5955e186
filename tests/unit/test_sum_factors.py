"""By what an all-reduce multiplied its values, if it combined equal ones."""

from __future__ import annotations

import math

import pytest

from gradledger.capture.async_copy import Deferred
from gradledger.capture.open_parts import sum_factor, sums_of

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
    assert sums_of([(values, values), (values, late)]) == [1]
