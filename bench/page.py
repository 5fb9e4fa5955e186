"""Gathers the figures of one ``make bench`` into the page that shows them.

    python bench/page.py FOLDER docs/performance.md

FOLDER holds the JSON files that the benchmarks wrote (``report.py`` says of what shape); their
names give the order of the chapters.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path

from report import PARTS, Measure, Report

INTRODUCTION = """# Performance

Written by `make bench`; do not edit. Every figure was measured side by side with what it is
compared to: in one run, in turns (A B A B), so that whatever else the machine did hit all alike.
A figure is the median of the turns; beside it stands their middle half. A note below a table says
what bounds a goal that is missed."""


def read(file: Path) -> Report:
    """What one benchmark wrote."""
    told = json.loads(file.read_text())
    return Report(**(told | {"measures": [Measure(**each) for each in told["measures"]]}))


def machine() -> list[tuple[str, str]]:
    """What the figures hold for."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return [
        ("processor", f"{os.cpu_count()} cores, {found[1] if found else platform.machine()}"),
        ("system", f"{platform.system()} {platform.release()}"),
        ("Python", platform.python_version()),
        ("PyTorch", version("torch")),
        ("date", time.strftime("%Y-%m-%d")),
    ]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def summary(reports: list[Report]) -> str:
    """How many goals hold, and which do not."""
    held = [m for report in reports for m in report.measures if m.holds is not None]
    missed = [f"- {m.name}: {m.cells[1]}, goal {m.goal}" for m in held if not m.holds]
    told = f"{len(held) - len(missed)} of {len(held)} goals hold."
    return "\n".join([told, *(["", "Missed:", "", *missed] if missed else [])])


def chapter(report: Report) -> str:
    """One benchmark."""
    rows: list[tuple[str, ...]] = [measure.cells for measure in report.measures]
    parts = [f"## {report.title}", f"`{report.command}`", table(PARTS, rows), *report.notes]
    return "\n\n".join(parts)


def main(folder: Path, page: Path) -> None:
    """Write the page."""
    reports = [read(file) for file in sorted(folder.glob("*.json"))]
    if not reports:
        sys.exit(f"{folder} holds no figures: run `make bench`, which writes them")
    parts = [INTRODUCTION, table(("", ""), [*machine()]), summary(reports)]
    page.write_text("\n\n".join([*parts, *map(chapter, reports)]) + "\n")
    print(f"{page}: {len(reports)} chapters")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
