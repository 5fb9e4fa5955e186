"""Which tool wrote a file or a folder, and the function that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gradledger_monitor.importers import mlflow, tables, tensorboard, trainer_state
from gradledger_monitor.importers.metric_log import TrainingLog, UnreadableLog

Reader = Callable[[Path], Iterator[TrainingLog]]

FORMATS: dict[str, Reader] = {
    "tensorboard": tensorboard.read,
    "trainer_state": trainer_state.read,
    "mlflow": lambda p: mlflow.read_folder(p) if p.is_dir() else mlflow.read_database(p),
    "table": tables.read,
}


def reader(path: Path) -> Reader:
    """The function that reads a path. Raises ``UnreadableLog`` if its format is unknown."""
    return FORMATS[_of_folder(path) if path.is_dir() else _of_file(path)]


def _of_file(path: Path) -> str:
    if tensorboard.MARK in path.name:
        return "tensorboard"
    if path.name == trainer_state.FILE:
        return "trainer_state"
    if path.suffix in tables.SUFFIXES:
        return "table"
    if mlflow.is_database(path):
        return "mlflow"
    raise _unrecognised(path)


def _of_folder(path: Path) -> str:
    if any(path.glob(trainer_state.FILE)) or any(path.glob(f"checkpoint-*/{trainer_state.FILE}")):
        return "trainer_state"
    if any(path.rglob(f"*{tensorboard.MARK}*")):
        return "tensorboard"
    if any(path.rglob("meta.yaml")):
        return "mlflow"
    raise _unrecognised(path)


def _unrecognised(path: Path) -> UnreadableLog:
    formats = ", ".join(FORMATS)
    return UnreadableLog(f"{path}: Unrecognised log format. Pass --format {formats}")
