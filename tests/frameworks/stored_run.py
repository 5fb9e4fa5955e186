"""Reads evaluations, checkpoints and the configuration of a run from the database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec


def evaluations_of(database: Path) -> list[tuple[str, int, float]]:
    """Name, step and value of every evaluation metric."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("select name, step, value from evals").fetchall()


def checkpoints_of(database: Path) -> list[tuple[int, str]]:
    """Step and path of every checkpoint."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("select step, path from checkpoints order by step").fetchall()


def config_of(database: Path) -> dict[str, Any]:
    """The configuration of the only run."""
    with closing(sqlite3.connect(database)) as connection:
        (config,) = connection.execute("select config from runs").fetchone()
    values: dict[str, Any] = msgspec.msgpack.decode(config)
    return values
