"""MLflow runs: a folder ``mlruns``, or the SQLite file of a tracking server. MLflow is not needed.

The layouts are those of mlflow/store/tracking/file_store.py and dbmodels/models.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from gradledger_monitor.importers.metric_log import Point, TrainingLog, UnreadableLog, number

Measurement = tuple[str, int, float, float]  # metric, step, Unix seconds, value
_ENDED = ("FINISHED", "FAILED", "KILLED", "3", "4", "5")  # names, or numbers of the enum
MAX_META_BYTES = 16 * 1024  # of meta.yaml, which is usually below 1 kB
MAX_META_DEPTH = 8  # of nested lists and mappings: PyYAML takes quadratic time for them


def read_folder(path: Path) -> Iterator[TrainingLog]:
    """Every run below a folder that has metrics."""
    for metrics in sorted(path.rglob("metrics")):
        folder = metrics.parent
        if metrics.is_dir() and (folder / "meta.yaml").is_file():
            files = [file for file in sorted(metrics.rglob("*")) if file.is_file()]
            measurements = [m for file in files for m in _read_metric(file, metrics)]
            if measurements:
                yield _read_run(folder, measurements)


def _read_run(folder: Path, measurements: list[Measurement]) -> TrainingLog:
    meta = _read_meta(folder / "meta.yaml")
    parameters = {f.name: f.read_text() for f in sorted(folder.glob("params/*")) if f.is_file()}
    run = meta.get("run_id") or folder.name
    name = meta.get("run_name") or run
    ended = meta.get("status", "FINISHED") in _ENDED
    return TrainingLog("MLflow", run, name, _points(measurements), parameters, ended=ended)


def _read_metric(file: Path, folder: Path) -> Iterator[Measurement]:
    name = file.relative_to(folder).as_posix()
    for line in file.read_text().splitlines():
        try:
            time, value, *step = line.split()
            yield name, int(step[0]) if step else 0, int(time) / 1_000, float(value)
        except ValueError as error:
            raise UnreadableLog(f"{file}: not a metric file of MLflow") from error


def _read_meta(path: Path) -> dict[str, str]:
    """The strings and integers of ``meta.yaml``, as strings."""
    try:
        meta = _parse_meta(path)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableLog(f"{path}: not the meta.yaml of an MLflow run: {error}") from error
    return {str(key): str(value) for key, value in meta.items() if isinstance(value, str | int)}


def _parse_meta(path: Path) -> dict[Any, Any]:
    with path.open("rb") as file:
        content = file.read(MAX_META_BYTES + 1)
    if len(content) > MAX_META_BYTES:
        raise ValueError(f"it is larger than {MAX_META_BYTES} bytes")
    _check_structure(content)
    meta = yaml.safe_load(content)
    if not isinstance(meta, dict):
        raise ValueError("it is not a mapping")
    return meta


def _check_structure(content: bytes) -> None:
    """Refuse aliases, which MLflow does not write and which expand exponentially if merged."""
    depth = 0
    for event in yaml.parse(content):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has YAML aliases")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_META_DEPTH:
            raise ValueError("it is nested too deeply")


def is_database(path: Path) -> bool:
    """Whether a file is an SQLite database with MLflow's tables."""
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return False
    with closing(_connect(path)) as database:
        query = "SELECT count(*) FROM sqlite_master WHERE name IN ('runs', 'metrics', 'params')"
        return bool(database.execute(query).fetchone()[0] == 3)


def read_database(path: Path) -> Iterator[TrainingLog]:
    """Every run of a tracking database that has metrics."""
    with closing(_connect(path)) as database:
        try:
            query = "SELECT run_uuid, name, status FROM runs ORDER BY start_time"
            for run, name, status in database.execute(query).fetchall():
                log = _query_run(database, run, name or run, status in _ENDED)
                if log.points:
                    yield log
        except sqlite3.Error as error:
            raise UnreadableLog(f"{path}: not a database of MLflow: {error}") from error


def _query_run(database: sqlite3.Connection, run: str, name: str, ended: bool) -> TrainingLog:
    query = "SELECT key, step, timestamp / 1000.0, value, is_nan FROM metrics WHERE run_uuid = ?"
    rows = database.execute(f"{query} ORDER BY timestamp", (run,))
    measurements = [(k, s, t, float("nan") if is_nan else v) for k, s, t, v, is_nan in rows]
    parameters = database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run,))
    config = dict(parameters.fetchall())
    return TrainingLog("MLflow", run, name, _points(measurements), config, ended=ended)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _points(measurements: Iterable[Measurement]) -> list[Point]:
    points: dict[int, Point] = {}
    for name, step, time, value in measurements:
        values = points[step].values if step in points else {}
        if number(value) is not None:
            points[step] = Point(step, {**values, name: value}, time)
    return [points[step] for step in sorted(points)]
