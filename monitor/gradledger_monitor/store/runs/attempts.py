"""The attempts of a job: runs that a launcher started again, in order."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from gradledger_monitor.model.attempts import attempts_of, restarts_text
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import runs

MOST = 1_000  # of one job that are read


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job, from the first that trained."""

    number: int
    run: str
    restarts: str  # as its launchers counted them
    started: float
    last_seen: float
    ended: bool
    world_size: int
    steps: int
    verdict: str


def attempts(store: Store, run: str) -> list[Attempt]:
    """The attempts of the job of a run, that run included; empty if it is the only one."""
    job = select(runs.c.job).where(runs.c.id == run).scalar_subquery()
    query = select(runs).where(runs.c.job == job).order_by(runs.c.started, runs.c.key).limit(MOST)
    with store.reading() as connection:
        rows = connection.execute(query).all()
    return [
        Attempt(
            number=number,
            run=row.id,
            restarts=restarts_text(row.environment),
            started=row.started,
            last_seen=row.last_seen,
            ended=row.ended,
            world_size=row.world_size,
            steps=row.steps,
            verdict=row.verdict,
        )
        for number, row in enumerate(attempts_of(run, rows), start=1)
    ]


def has_later(store: Store, run: str) -> bool:
    """Whether the job of a run has a later attempt."""
    ids = [attempt.run for attempt in attempts(store, run)]
    return bool(ids) and ids[-1] != run
