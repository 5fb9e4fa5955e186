"""A run in which no optimizer step ends, as the service observes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Inactivity:
    """No step had ended for so long when the service wrote this down: a record like others."""

    seconds: float  # since the last step came
    silent: list[int]  # ranks that showed no other sign of life either, of late
    backwards: int | None  # that ran since, on the rank that counted most; None is not known
