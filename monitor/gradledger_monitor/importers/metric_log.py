"""The common form of all imported logs: named numbers at steps, and the tool (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


class UnreadableLog(ValueError):
    """A file or folder that cannot be read as a log; the message states what to do."""


@dataclass(frozen=True)
class Point:
    """Named numbers that were logged together."""

    step: float
    values: Mapping[str, float]
    time: float | None = None  # Unix seconds


@dataclass(frozen=True)
class TrainingLog:
    """One training, as another tool logged it.

    ``identity`` is unique, and the same each time the log is read.
    """

    tool: str
    identity: str
    name: str
    points: list[Point]
    config: Mapping[str, Any] = field(default_factory=dict)
    project: str = "imported"
    checkpoints: Mapping[int, str] = field(default_factory=dict)  # path by step
    ended: bool = True

    def metrics(self) -> Iterator[str]:
        """All metric names, in the order of their first appearance."""
        return iter(dict.fromkeys(name for point in self.points for name in point.values))


def number(value: Any) -> float | None:
    """The number in a table cell; None for text, a boolean or an empty cell."""
    if isinstance(value, bool) or value is None or value == "":
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
