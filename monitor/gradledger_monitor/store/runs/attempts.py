"""The attempts of a job: runs that a launcher started again, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from gradledger_monitor.model.attempts import attempts_of, restarts_text
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import runs

MOST = 1_000  # of one job that are read
MOST_SHOWN = 20  # on a page and in a report

_LINKING = (runs.c.id, runs.c.environment, runs.c.world_size)


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job, from the first that sent a record."""

    number: int
    total: int  # attempts of the job
    run: str
    restarts: str  # as its launchers counted them
    started: float
    last_seen: float
    ended: bool
    world_size: int
    steps: int
    verdict: str


def attempts(store: Store, run: str, most: int = MOST) -> list[Attempt]:
    """The attempts of the job of a run, that run included; empty if it is the only one.

    Of more than ``most``, those around it.
    """
    columns = (runs.c.started, runs.c.last_seen, runs.c.ended, runs.c.steps, runs.c.verdict)
    with store.reading() as connection:
        rows = _rows(connection, run, *columns)
    position = next((n for n, row in enumerate(rows) if row.id == run), 0)
    first = max(0, min(position - most // 2, len(rows) - most))
    return [
        Attempt(
            number=number,
            total=len(rows),
            run=row.id,
            restarts=restarts_text(row.environment),
            started=row.started,
            last_seen=row.last_seen,
            ended=row.ended,
            world_size=row.world_size,
            steps=row.steps,
            verdict=row.verdict,
        )
        for number, row in enumerate(rows[first : first + most], start=first + 1)
    ]


def earlier(connection: Connection, run: str) -> list[int]:
    """The keys of the earlier attempts of the job of a run."""
    rows = _rows(connection, run, runs.c.key)
    position = next((n for n, row in enumerate(rows) if row.id == run), 0)
    return [row.key for row in rows[:position]]


def has_later(connection: Connection, run: str) -> bool:
    """Whether the job of a run has a later attempt."""
    rows = _rows(connection, run)
    return bool(rows) and rows[-1].id != run


def _rows(connection: Connection, run: str, *columns: Any) -> list[Row[Any]]:
    """The rows of the attempts of the job of a run, in order, with these columns."""
    job = select(runs.c.job).where(runs.c.id == run).scalar_subquery()
    query = select(*_LINKING, *columns).where(runs.c.job == job)
    query = query.order_by(runs.c.started, runs.c.key).limit(MOST)
    return attempts_of(run, connection.execute(query).all())
