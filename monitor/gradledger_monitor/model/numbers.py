"""Numbers of records: floats, or strings for the three values that JSON has no number for."""

from __future__ import annotations

from collections.abc import Iterable

from gradledger_monitor.ingest.schema import Number

MAX_INT64 = 2**63 - 1  # the largest integer of databases and of MessagePack


def number(value: Number | None) -> float | None:
    """The float of a wire number, "NaN", "Infinity" and "-Infinity" included; None stays None."""
    return value if value is None else float(value)


def common_number(values: Iterable[Number | None]) -> float | None:
    """The number that all values are; None if they differ, or if there is none."""
    distinct = set(values)
    return number(distinct.pop()) if len(distinct) == 1 else None
