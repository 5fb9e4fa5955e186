"""How numbers are formatted for people."""

from __future__ import annotations

import math

import pytest

from gradledger_web import formatting

DASH = formatting.NOT_MEASURED


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, DASH),
        (0, "0"),
        (1984, "1,984"),
        (392_311, "392k"),
        (999_999, "1M"),
        (7.25e9, "7.25G"),
    ],
)
def test_counts_are_grouped_then_prefixed(value: float | None, text: str) -> None:
    assert formatting.count(value) == text


def test_a_time_before_any_training_is_not_a_date() -> None:
    assert formatting.clock(1_700_000_000) == "2023-11-14 22:13 UTC"
    for unknown in (0.0, 12_345.6):  # no time in a log; a monotonic clock
        assert formatting.clock(unknown) == "at an unknown time"
        assert formatting.time_span(unknown, 1_700_000_000) == DASH
    assert formatting.time_span(1_700_000_000, 1_700_000_090) == "1 min 30 s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, DASH),
        (1.0, "1"),
        (2.9745123, "2.975"),
        (0.00024712, "0.0002471"),
        (3e-5, "3e-05"),
        (1234.5678, "1,235"),
        (65_536.0, "65,536"),
        (2_097_152.0, "2,097,152"),
        (4.2414e21, "4.241e+21"),
        (1.19209e-07, "1.192e-07"),
        (100.0, "100"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
    ],
)
def test_figures_keep_the_digits_that_matter(value: float | None, text: str) -> None:
    assert formatting.figure(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, DASH), (0.0, "0%"), (4e-9, "0%"), (0.0031, "0.31%"), (0.172, "17.2%"), (1.0, "100%")],
)
def test_shares_are_percents(value: float | None, text: str) -> None:
    assert formatting.percent(value) == text


def test_not_measured_is_never_written_as_zero() -> None:
    written = (formatting.count, formatting.figure, formatting.percent, formatting.times)
    assert {write(None) for write in written} == {DASH}


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2.4e9, "2.4 GB")]
)
def test_sizes_have_decimal_prefixes(size: float, text: str) -> None:
    assert formatting.byte_size(size) == text


def test_durations_have_two_units() -> None:
    assert [formatting.duration(s) for s in (None, 0, 59, 3_725, 90_000)] == [
        DASH,
        "0 s",
        "59 s",
        "1 h 2 min",
        "1 d 1 h",
    ]


def test_one_is_singular() -> None:
    assert [formatting.plural(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert formatting.plural(120_000, "step") == "120k steps"
    assert formatting.plural(2, "micro-batch") == "2 micro-batches"


def test_a_path_segment_cannot_leave_its_place() -> None:
    assert formatting.segment("../a b?") == "..%2Fa%20b%3F"
