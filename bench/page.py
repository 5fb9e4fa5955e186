"""Gathers the figures of one ``make bench`` into the page that shows them.

    python bench/page.py FOLDER docs/performance.md [--keep]

FOLDER holds the JSON files that the benchmarks wrote (``report.py`` says of what shape); their
names give the order of the chapters. With ``--keep``, the page stays as it is but for chapters that
were measured anew: each says when, and on what.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
import timeit
from importlib.metadata import version
from pathlib import Path

from report import PARTS, Measure, Report

INTRODUCTION = """# Performance

Written by `make bench`; do not edit. Every figure was measured side by side with what it is
compared to: in one run, in turns (A B A B), so that whatever else the machine did hit all alike.
A figure is the median of the turns; beside it stands their middle half. A note below a table says
what bounds a goal that is missed."""

WITH_GOAL = re.compile(
    r"^\| (?P<name>.+?) \| (?P<measured>.+?) \|.*\| (?P<goal>.+?) \| (?P<verdict>holds|missed) \|$",
    re.MULTILINE,
)

ADD = "x = 0\nfor _ in range(1_000_000): x += 1"


def read(file: Path) -> Report:
    """What one benchmark wrote."""
    told = json.loads(file.read_text())
    return Report(**(told | {"measures": [Measure(**each) for each in told["measures"]]}))


def machine() -> list[tuple[str, ...]]:
    """What the figures hold for."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return [
        ("processor", f"{os.cpu_count()} cores, {found[1] if found else platform.machine()}"),
        ("system", f"{platform.system()} {platform.release()}"),
        ("Python", platform.python_version()),
        (
            "a million additions in a loop of it",
            f"{min(timeit.repeat(ADD, number=1)) * 1e3:.0f} ms",
        ),
        ("PyTorch", version("torch")),
        ("date", time.strftime("%Y-%m-%d")),
    ]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def summary(chapters: list[str]) -> str:
    """How many goals hold, and which do not."""
    held = [row for text in chapters for row in WITH_GOAL.finditer(text)]
    missed = [
        f"- {m['name']}: {m['measured']}, goal {m['goal']}"
        for m in held
        if m["verdict"] == "missed"
    ]
    told = f"{len(held) - len(missed)} of {len(held)} goals hold."
    return "\n".join([told, *(["", "Missed:", "", *missed] if missed else [])])


def chapter(report: Report, *said: str) -> str:
    """One benchmark."""
    rows: list[tuple[str, ...]] = [measure.cells for measure in report.measures]
    head = [f"## {report.title}", f"`{report.command}`", *said]
    return "\n\n".join([*head, table(PARTS, rows), *report.notes])


def stands(page: Path) -> tuple[str, dict[str, str]]:
    """What a page says of the machine, and its chapters by title."""
    head, *texts = page.read_text().rstrip().split("\n\n## ")
    (about,) = re.findall(r"^\|  \|  \|\n(?:\|.*\n)+", head, re.MULTILINE)
    return about.rstrip(), {text.split("\n", 1)[0]: f"## {text}" for text in texts}


def main(folder: Path, page: Path, keep: bool) -> None:
    """Write the page."""
    reports = [read(file) for file in sorted(folder.glob("*.json"))]
    if not reports:
        sys.exit(f"{folder} holds no figures: run `make bench`, which writes them")
    here, said = machine(), list[str]()
    about, chapters = table(("", ""), here), dict[str, str]()
    if keep and page.exists():
        said = ["Measured by itself: " + "; ".join(": ".join(row) for row in here) + "."]
        about, chapters = stands(page)
    chapters |= {report.title: chapter(report, *said) for report in reports}
    texts = [*chapters.values()]
    page.write_text("\n\n".join([INTRODUCTION, about, summary(texts), *texts]) + "\n")
    print(f"{page}: {len(texts)} chapters")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--keep", action="store_true", help="chapters not measured anew")
    main(**vars(parser.parse_args()))
