"""CSV and JSON tables: Lightning's ``metrics.csv``, histories out of W&B, and anybody's own."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gradledger_monitor.importers.metric_log import Point, TrainingLog, UnreadableLog, number

SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
_COUNTERS = ("step", "global_step", "trainer/global_step", "train/global_step", "_step", "Step")

Row = Mapping[str, Any]


def read(path: Path) -> Iterator[TrainingLog]:
    """The training in one file, whose rows are steps and whose columns are metrics."""
    rows = _plainly_named(list(_rows(path)))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    points = [_point(at, row) for at, row in enumerate(rows, 1)]
    if not any(point.values for point in points):
        raise UnreadableLog(f"{path}: no numbers are in it")
    tool, name = _tool(path, columns)
    yield TrainingLog(tool, str(path.resolve()), name, points)


def _rows(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix in (".csv", ".tsv"):
                yield from csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            elif path.suffix == ".json":
                yield from _of_json(json.load(file))
            else:
                yield from (json.loads(line) for line in file if line.strip())
    except (ValueError, csv.Error, UnicodeDecodeError) as error:
        raise UnreadableLog(f"{path}: {error}") from error


def _of_json(said: Any) -> Iterable[Row]:
    """A list of rows; or pandas' default: columns, each a mapping from index to value."""
    if isinstance(said, dict) and all(isinstance(column, dict) for column in said.values()):
        index = dict.fromkeys(at for column in said.values() for at in column)
        return [{name: column.get(at) for name, column in said.items()} for at in index]
    if isinstance(said, list):
        return said
    raise ValueError("a table in JSON is a list of objects, or an object of columns")


def _plainly_named(rows: list[Row]) -> list[Row]:
    """W&B's page names a column ``run - metric``, and adds the extremes of what it stands for."""
    if not all(isinstance(row, Mapping) for row in rows):
        raise UnreadableLog("a row of it is not an object with names")
    columns = [c for c in dict.fromkeys(name for row in rows for name in row) if c]
    runs = {c.partition(" - ")[0] for c in columns if " - " in c}
    if len(runs) > 1:
        raise UnreadableLog(
            f"it holds several runs ({', '.join(sorted(runs))}); export one of them"
        )
    kept = {c: c.partition(" - ")[2] or c for c in columns if not c.endswith(("__MIN", "__MAX"))}
    return [{plain: row.get(c) for c, plain in kept.items()} for row in rows]


def _point(place: int, row: Row) -> Point:
    values = {name: v for name, cell in row.items() if (v := number(cell)) is not None}
    counter = next((name for name in _COUNTERS if name in values), None)
    return Point(values[counter] if counter else place, values)


def _tool(path: Path, columns: list[str]) -> tuple[str, str]:
    """Who wrote it, and what to call the run."""
    if "_step" in columns or "Step" in columns:
        return "W&B", path.stem
    if path.name == "metrics.csv" and {"epoch", "step"} <= set(columns):
        return "Lightning's CSVLogger", path.parent.name
    return "a table", path.stem
