"""CSV and JSON tables: Lightning's ``metrics.csv``, histories exported from W&B, any other."""

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
    """The training in one file: a row per step, a column per metric."""
    rows = _rename_columns(list(_rows(path)))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    points = [_point(index, row) for index, row in enumerate(rows, 1)]
    if not any(point.values for point in points):
        raise UnreadableLog(f"{path}: no numbers in it")
    tool, name = _tool(path, columns)
    yield TrainingLog(tool, str(path.resolve()), name, points)


def _rows(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix in (".csv", ".tsv"):
                yield from csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            elif path.suffix == ".json":
                yield from _json_rows(json.load(file))
            else:
                yield from (json.loads(line) for line in file if line.strip())
    except (ValueError, csv.Error, UnicodeDecodeError) as error:
        raise UnreadableLog(f"{path}: {error}") from error


def _json_rows(content: Any) -> Iterable[Row]:
    """A list of rows; or the default of pandas: columns that map an index to a value."""
    if isinstance(content, dict) and all(isinstance(column, dict) for column in content.values()):
        index = dict.fromkeys(key for column in content.values() for key in column)
        return [{name: column.get(key) for name, column in content.items()} for key in index]
    if isinstance(content, list):
        return content
    raise ValueError("a table in JSON is a list of objects, or an object of columns")


def _rename_columns(rows: list[Row]) -> list[Row]:
    """Rows of W&B's web export: its columns are ``run - metric``, with added extremes."""
    if not all(isinstance(row, Mapping) for row in rows):
        raise UnreadableLog("a row is not an object with names")
    columns = [c for c in dict.fromkeys(name for row in rows for name in row) if c]
    runs = {c.partition(" - ")[0] for c in columns if " - " in c}
    if len(runs) > 1:
        raise UnreadableLog(
            f"it holds several runs ({', '.join(sorted(runs))}); export one of them"
        )
    names = {c: c.partition(" - ")[2] or c for c in columns if not c.endswith(("__MIN", "__MAX"))}
    return [{name: row.get(c) for c, name in names.items()} for row in rows]


def _point(index: int, row: Row) -> Point:
    values = {name: v for name, cell in row.items() if (v := number(cell)) is not None}
    counter = next((name for name in _COUNTERS if name in values), None)
    return Point(values[counter] if counter else index, values)


def _tool(path: Path, columns: list[str]) -> tuple[str, str]:
    """The tool that wrote the file, and a name for the run."""
    if "_step" in columns or "Step" in columns:
        return "W&B", path.stem
    if path.name == "metrics.csv" and {"epoch", "step"} <= set(columns):
        return "Lightning's CSVLogger", path.parent.name
    return "a table", path.stem
