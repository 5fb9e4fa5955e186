"""Where training could be taken up again: what scripts said that they saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Connection, select

from gradledger_monitor.ingest import schema
from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.tables import checkpoints


class LineCounter(Protocol):
    """What counts stored lines."""

    def count(self, stored: int, sent: int) -> None: ...


def write(
    connection: Connection,
    run: int,
    records: Sequence[schema.CheckpointRecord],
    result: LineCounter,
) -> None:
    """Keep what is new; several ranks may save one checkpoint."""
    for record in records:
        path = record.path.replace("\0", "\N{REPLACEMENT CHARACTER}")  # Postgres takes none
        row = {"run": run, "step": record.step, "time": record.time, "path": path}
        new = dialects.insert(connection, checkpoints).values(row).on_conflict_do_nothing()
        done = connection.execute(new.returning(checkpoints.c.step)).all()
        result.count(len(done), 1)


def of_run(store: Store, run: str) -> list[schema.CheckpointRecord]:
    """All of a run, in order. Raises ``UnknownRun``."""
    columns = (checkpoints.c.step, checkpoints.c.time, checkpoints.c.path)
    with store.reading() as connection:
        query = select(*columns).where(checkpoints.c.run == require_run(connection, run).key)
        found = connection.execute(query.order_by(checkpoints.c.step)).all()
    return [schema.CheckpointRecord(step=step, time=time, path=path) for step, time, path in found]
