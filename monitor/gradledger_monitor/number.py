"""Numbers of records, which say in words what JSON has no number for."""

from __future__ import annotations

from gradledger_monitor.wire import Number


def number(value: Number | None) -> float | None:
    """The float that a wire number stands for; None stays None."""
    return value if value is None else float(value)
