"""Tables from the store as columns, and as pandas, Arrow or Parquet if these are installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradledger_monitor.model.findings import Finding
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import RunRow
from gradledger_monitor.store.steps import curves
from gradledger_monitor.store.steps.curves import Span

Columns = dict[str, list[Any]]
ALL = 2**53

_RUN = (
    "id",
    "name",
    "project",
    "started",
    "last_seen",
    "ended",
    "world_size",
    "verdict",
    "primary",
    "steps",
    "tokens",
)
_FINDING = tuple(n for n in Finding.__dataclass_fields__ if n != "acknowledged")


def steps(store: Store, run: str, optimizer: int) -> Columns:
    """A row per evaluated step; for pruned steps, a row per bucket of 64 steps.

    A row covers the steps ``first`` to ``step``; each mean has its minimum and maximum.
    """
    return curves.curves(store, run, Span(optimizer), points=ALL)


def runs(rows: Sequence[RunRow]) -> Columns:
    """One row per run."""
    return {name: [getattr(row, name) for row in rows] for name in _RUN}


def findings(run: str, listed: Sequence[Finding]) -> Columns:
    """One row per finding."""
    rows = [{**asdict(f), "run": run} for f in listed]
    columns: Columns = {name: [row[name] for row in rows] for name in ("run", *_FINDING)}
    notes = [f.acknowledged.note if f.acknowledged else None for f in listed]
    return {**columns, "acknowledged": notes}


def evaluations(store: Store, run: str) -> Columns:
    """One row per metric and step: the mean over the ranks."""
    columns: Columns = {"step": [], "metric": [], "value": []}
    for name, curve in curves.eval_curves(store, run, points=ALL).items():
        columns["step"] += curve["step"]
        columns["metric"] += [name] * len(curve["step"])
        columns["value"] += curve["mean"]
    return columns


def frame(columns: Columns) -> Any:
    """A pandas DataFrame."""
    return _module("pandas").DataFrame(columns)


def arrow(columns: Columns, metadata: Mapping[str, str] | None = None) -> Any:
    """An Arrow table."""
    return _module("pyarrow").table(columns, metadata=dict(metadata or {}) or None)


def to_parquet(columns: Columns, path: Path, metadata: Mapping[str, str]) -> int:
    """Write a Parquet file; returns the number of rows."""
    parquet = _module("pyarrow.parquet")
    table = arrow(columns, metadata)
    parquet.write_table(table, path, compression="zstd")
    return int(table.num_rows)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        package = name.partition(".")[0]
        raise ModuleNotFoundError(f"this needs {package}: pip install {package}") from missing
