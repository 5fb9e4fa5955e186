"""What all logs of other tools come down to: named numbers at steps, and who wrote them (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


class UnreadableLog(ValueError):
    """A file or folder that is not what it was taken for, with what to do about it."""


@dataclass(frozen=True)
class Point:
    """Named numbers that were logged together."""

    step: float
    values: Mapping[str, float]
    time: float | None = None  # Unix seconds


@dataclass(frozen=True)
class TrainingLog:
    """One training as another tool wrote it down.

    ``identity`` tells it from all others, and is the same whenever it is read.
    """

    tool: str
    identity: str
    name: str
    points: list[Point]
    config: Mapping[str, Any] = field(default_factory=dict)
    project: str = "imported"
    checkpoints: Mapping[int, str] = field(default_factory=dict)  # by step: where it lies
    over: bool = True

    def metrics(self) -> Iterator[str]:
        """Every name, in the order of first appearance."""
        return iter(dict.fromkeys(name for point in self.points for name in point.values))


def number(value: Any) -> float | None:
    """The number that a cell holds; None for a text, a truth value or nothing."""
    if isinstance(value, bool) or value is None or value == "":
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
