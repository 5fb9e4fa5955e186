"""The columns of the list of runs: those that people choose, and the course of the loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gradledger_web import evidence_svg, formatting

NAMED = {
    "findings": "Findings",
    "loss": "Loss",
    "steps": "Steps",
    "tokens": "Tokens",
    "speed": "Speed",
    "eta": "ETA",
    "ranks": "Ranks",
    "duration": "Duration",
    "started": "Started",
    "seen": "Last seen",
}
DEFAULT = ("findings", "loss", "steps", "duration", "started", "seen")
CONFIG = "config."  # before the name of a key of the configuration
MOST_CHOSEN = 24
POINTS = 24  # of a sparkline
LOSSES = ("loss_reported", "loss_token")  # the first that is measured


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of a URL, in the order of the page; the default ones if it has none."""
    named = [name for name in NAMED if name in names]
    keys = [name for name in dict.fromkeys(names) if name.startswith(CONFIG)]
    return tuple((named + keys)[:MOST_CHOSEN]) or DEFAULT


def config_keys(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys of some configurations whose values are short enough for a column."""
    keys = {key for config in configs for key, value in config.items() if _is_short(value)}
    return sorted(keys)


def _is_short(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 64)


def config_text(config: Mapping[str, Any], column: str) -> str:
    """The value of a column of the configuration."""
    value = config.get(column.removeprefix(CONFIG))
    if isinstance(value, float):
        return formatting.figure(value)
    return formatting.NOT_MEASURED if value is None else formatting.joined(value)


@dataclass(frozen=True)
class LossCourse:
    """The last loss of a run and its course as an SVG path; ``name`` is which loss it is."""

    name: str
    last: float
    path: str


def loss_course(
    columns: Mapping[str, Sequence[Any]], end: Mapping[str, Sequence[Any]]
) -> LossCourse | None:
    """The course of the first loss that was measured; None if none was.

    ``end`` has the last steps one by one: a point of the course is a mean over several. If none of
    them has the loss, its last point is shown.
    """
    for figure in LOSSES:
        values = chain(reversed(end[figure]), reversed(columns[figure]))
        last = next((value for value in values if value is not None), None)
        line = evidence_svg.line_chart(figure, columns["step"], columns[figure], 0, 0)
        if line is not None and last is not None:
            return LossCourse(line.label, last, line.path)
    return None
