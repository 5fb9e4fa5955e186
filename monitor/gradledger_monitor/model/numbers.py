"""Numbers of records, which say in words what JSON has no number for."""

from __future__ import annotations

from gradledger_monitor.ingest.schema import Number

MAX_INT64 = 2**63 - 1  # the largest integer of databases and of MessagePack


def number(value: Number | None) -> float | None:
    """The float that a wire number stands for; None stays None."""
    return value if value is None else float(value)
