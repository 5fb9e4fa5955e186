"""MLflow: a folder ``mlruns``, or the SQLite file of a tracking server; without MLflow.

Laid out as mlflow/store/tracking/file_store.py and dbmodels/models.py have it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from gradledger_monitor.importers.metric_log import Point, TrainingLog, UnreadableLog, number

Measured = tuple[str, int, float, float]  # name, step, time in seconds, value
_FINISHED = ("FINISHED", "FAILED", "KILLED", "3", "4", "5")


def read_folder(path: Path) -> Iterator[TrainingLog]:
    """Every run below a folder that holds metrics."""
    for metrics in sorted(path.rglob("metrics")):
        folder = metrics.parent
        if metrics.is_dir() and (folder / "meta.yaml").is_file():
            measured = [
                m for f in sorted(metrics.rglob("*")) if f.is_file() for m in _lines(f, metrics)
            ]
            if measured:
                yield _of_folder(folder, measured)


def _of_folder(folder: Path, measured: list[Measured]) -> TrainingLog:
    about = _flat_yaml(folder / "meta.yaml")
    parameters = {f.name: f.read_text() for f in sorted(folder.glob("params/*")) if f.is_file()}
    run = about.get("run_id") or folder.name
    name = about.get("run_name") or run
    over = about.get("status", "FINISHED") in _FINISHED
    return TrainingLog("MLflow", run, name, _points(measured), parameters, over=over)


def _lines(file: Path, below: Path) -> Iterator[Measured]:
    name = file.relative_to(below).as_posix()
    for line in file.read_text().splitlines():
        try:
            time, value, *step = line.split()
            yield name, int(step[0]) if step else 0, int(time) / 1_000, float(value)
        except ValueError as error:
            raise UnreadableLog(f"{file}: it is no metric of MLflow") from error


def _flat_yaml(path: Path) -> dict[str, str]:
    """The plain ``key: value`` lines, which is all that MLflow writes there."""
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, _, value in pairs}


def is_database(path: Path) -> bool:
    """Whether a file is an SQLite database with MLflow's tables."""
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return False
    with closing(_opened(path)) as database:
        query = "SELECT count(*) FROM sqlite_master WHERE name IN ('runs', 'metrics', 'params')"
        return bool(database.execute(query).fetchone()[0] == 3)


def read_database(path: Path) -> Iterator[TrainingLog]:
    """Every run of a tracking database that logged something."""
    with closing(_opened(path)) as database:
        try:
            query = "SELECT run_uuid, name, status FROM runs ORDER BY start_time"
            for run, name, status in database.execute(query).fetchall():
                logged = _of_database(database, run, name or run, status in _FINISHED)
                if logged.points:
                    yield logged
        except sqlite3.Error as error:
            raise UnreadableLog(f"{path}: it is no database of MLflow: {error}") from error


def _of_database(database: sqlite3.Connection, run: str, name: str, over: bool) -> TrainingLog:
    query = "SELECT key, step, timestamp / 1000.0, value, is_nan FROM metrics WHERE run_uuid = ?"
    found = database.execute(f"{query} ORDER BY timestamp", (run,))
    measured = [(k, s, t, float("nan") if bad else v) for k, s, t, v, bad in found]
    parameters = database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run,))
    return TrainingLog(
        "MLflow", run, name, _points(measured), dict(parameters.fetchall()), over=over
    )


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _points(measured: Iterable[Measured]) -> list[Point]:
    found: dict[int, Point] = {}
    for name, step, time, value in measured:
        values = found[step].values if step in found else {}
        if number(value) is not None:
            found[step] = Point(step, {**values, name: value}, time)
    return [found[step] for step in sorted(found)]
