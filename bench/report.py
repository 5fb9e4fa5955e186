"""The results of one benchmark: the table that it prints, and the JSON for ``page.py``.

A benchmark takes ``--json FILE`` from ``arguments``, fills a ``Report`` and ends with ``publish``.
Notes are Markdown paragraphs; they explain goals that are missed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

PARTS = ("measurement", "value", "interquartile range", "floor", "goal", "")


@dataclass(frozen=True)
class Measure:
    """One value, usually a median; ``low`` and ``high`` are the quartiles."""

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    floor: str = ""
    goal: str = ""
    holds: bool | None = None

    @property
    def cells(self) -> tuple[str, str, str, str, str, str]:
        """The row of a table."""
        verdict = {None: "", True: "met", False: "missed"}[self.holds]
        measured = with_unit(shown(self.value, self.unit), self.unit)
        return self.name, measured, self._half, self.floor, self.goal, verdict

    @property
    def _half(self) -> str:
        if self.low is None or self.high is None:
            return ""
        return f"{shown(self.low, self.unit)} to {shown(self.high, self.unit)}"


@dataclass
class Report:
    """The measurements of one benchmark, with notes."""

    title: str
    command: str
    measures: list[Measure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def median_of(
    name: str, values: Sequence[float], unit: str, floor: str = "", under: float | None = None
) -> Measure:
    """The median with the quartiles and, optionally, a limit as the goal."""
    if len(values) == 1:
        return below(Measure(name, values[0], unit, floor=floor), under)
    low, middle, high = statistics.quantiles(values, n=4)
    return below(Measure(name, middle, unit, low, high, floor), under)


def below(measure: Measure, limit: float | None) -> Measure:
    """The measurement with the goal to stay under a limit."""
    if limit is None:
        return measure
    values = asdict(measure) | {"goal": f"under {with_unit(f'{limit:,g}', measure.unit)}"}
    return Measure(**(values | {"holds": measure.value < limit}))


def with_unit(number: str, unit: str) -> str:
    """A number with its unit: ``28.4%``, ``0.8 s``, ``12``."""
    return f"{number}{'' if unit == '%' else ' '}{unit}".rstrip()


def shown(value: float, unit: str = "") -> str:
    """Three significant digits; ratios (unit ``x``) with three decimals; counts (no unit) whole."""
    if not unit and math.isfinite(value) and value == int(value):
        return f"{value:,.0f}"
    if unit == "x" and abs(value) < 10:
        return f"{value:.3f}"
    if not value or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{min(6, max(0, 2 - math.floor(math.log10(abs(value)))))}f}"


def arguments(about: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark's command line, with ``--json FILE``."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=shape)
    parser.add_argument(
        "--json", type=Path, help="write the results to FILE, for bench/page.py", metavar="FILE"
    )
    return parser


def repeatable_command(command: str, arguments: Sequence[str]) -> str:
    """The command with the arguments that a reader needs to repeat it, without file paths."""
    words, pairs = command.split(), iter(arguments)
    for word in pairs:
        if word in ("--json", "--peers"):
            next(pairs, None)
        elif not (word.startswith("--") and word in words):
            words.append(word)
    return " ".join(words)


def publish(report: Report, file: Path | None) -> None:
    """Print the table, and write the JSON if ``file`` is set."""
    report.command = repeatable_command(report.command, sys.argv[1:])
    print(f"{report.title}  ({report.command})")
    rows = [PARTS, *(measure.cells for measure in report.measures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  " + "  ".join(map(str.ljust, row, widths)).rstrip())
    for note in report.notes:
        print(f"  {note}")
    print(flush=True)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(report), indent=1))
