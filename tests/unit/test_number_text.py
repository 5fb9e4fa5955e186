"""The style of numbers in findings."""

from __future__ import annotations

import pytest

from gradledger_monitor.rules.number_text import data_size, significant, times


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.0, "4"),
        (0.25, "0.25"),
        (1024.0, "1,024"),
        (38487.4, "38,487"),
        (65536.0, "65,536"),
        (-65536.0, "-65,536"),
        (1.52588e-05, "1.526e-05"),
        (3.47e9, "3.47e+09"),
        (float("inf"), "inf"),
    ],
)
def test_a_number_has_four_significant_digits_or_is_whole(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (512, "512 B"), (15_800, "15.8 kB"), (3_000_000, "3.0 MB"), (2.4e9, "2.4 GB")],
)
def test_a_data_size_has_a_decimal_unit(size: float, text: str) -> None:
    assert data_size(size) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.048, "1.05 times"), (1.1, "1.1 times"), (2.66, "2.7 times"), (16992.9, "16,993 times")],
)
def test_a_factor_near_1_is_not_rounded_to_it(ratio: float, text: str) -> None:
    assert times(ratio) == text
