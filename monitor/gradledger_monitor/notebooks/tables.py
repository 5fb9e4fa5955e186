"""Tables out of the store, as columns; and as pandas, Arrow or Parquet where these are there."""

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
    """Each judged step; where single steps were given up, 64 of them as one row.

    ``first`` to ``step`` are what a row stands for; beside a mean stand its extremes.
    """
    return curves.curves(store, run, Span(optimizer), points=ALL)


def runs(rows: Sequence[RunRow]) -> Columns:
    """One row a run."""
    return {name: [getattr(row, name) for row in rows] for name in _RUN}


def findings(run: str, found: Sequence[Finding]) -> Columns:
    """One row a finding."""
    told = [{**asdict(f), "run": run} for f in found]
    columns: Columns = {name: [one[name] for one in told] for name in ("run", *_FINDING)}
    said = [f.acknowledged.note if f.acknowledged else None for f in found]
    return {**columns, "acknowledged": said}


def evaluations(store: Store, run: str) -> Columns:
    """One row a metric and step; of several ranks, their mean."""
    told: Columns = {"step": [], "metric": [], "value": []}
    for name, seen in curves.eval_curves(store, run, points=ALL).items():
        told["step"] += seen["step"]
        told["metric"] += [name] * len(seen["step"])
        told["value"] += seen["mean"]
    return told


def frame(columns: Columns) -> Any:
    """A pandas DataFrame."""
    return _module("pandas").DataFrame(columns)


def arrow(columns: Columns, metadata: Mapping[str, str] | None = None) -> Any:
    """An Arrow table."""
    return _module("pyarrow").table(columns, metadata=dict(metadata or {}) or None)


def to_parquet(columns: Columns, path: Path, metadata: Mapping[str, str]) -> int:
    """A Parquet file; the number of its rows."""
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
