"""The Retry-After header: delta-seconds and HTTP dates, bounded; invalid values give None."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from gradledger.delivery.http_client import MAX_RETRY_AFTER_SECONDS, retry_after_seconds

HUGE = ["601", "1e9", "inf", "9" * 400]
INVALID = ["", "soon", "nan", "7 seconds", "Thu, 99 Foo 2026 00:00:00 GMT", "\N{SUPERSCRIPT TWO}"]


@pytest.mark.parametrize(("header", "seconds"), [("0", 0), ("7", 7), (" 7 ", 7), ("0.5", 0.5)])
def test_delta_seconds_are_read(header: str, seconds: float) -> None:
    assert retry_after_seconds(header) == seconds


def test_an_http_date_gives_the_seconds_until_then() -> None:
    seconds = retry_after_seconds(formatdate(time.time() + 30, usegmt=True))
    assert seconds is not None and 25 < seconds <= 30


@pytest.mark.parametrize("header", ["-3", "-1e9", "-inf", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_negative_delay_and_a_past_date_are_no_delay(header: str) -> None:
    assert retry_after_seconds(header) == 0


@pytest.mark.parametrize("header", [*HUGE, formatdate(2**33, usegmt=True)])
def test_a_huge_delay_is_bounded(header: str) -> None:
    assert retry_after_seconds(header) == MAX_RETRY_AFTER_SECONDS
    assert retry_after_seconds(header, limit=5.0) == 5.0


@pytest.mark.parametrize("header", INVALID)
def test_an_invalid_header_is_no_delay(header: str) -> None:
    assert retry_after_seconds(header) is None
