"""The periods for which a person can snooze a finding, on the run page and behind a link."""

from __future__ import annotations

HOUR = 3_600.0
SNOOZE_PERIODS = {"1": "1 hour", "8": "8 hours", "24": "1 day", "168": "1 week"}  # by hours


def snooze_seconds(hours: str) -> float | None:
    """The length of a period that a form names by its hours; None for any other value."""
    return float(hours) * HOUR if hours in SNOOZE_PERIODS else None
