"""Checkpoints that scripts reported: steps from which training can be resumed."""

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
    """Counts stored lines and duplicates."""

    def count(self, stored: int, sent: int) -> None: ...


def write(
    connection: Connection,
    run: int,
    records: Sequence[schema.CheckpointRecord],
    result: LineCounter,
) -> None:
    """Store new checkpoints; several ranks may report the same one."""
    for record in records:
        path = dialects.without_nul(record.path)
        row = {"run": run, "step": record.step, "time": record.time, "path": path}
        new = dialects.insert(connection, checkpoints).values(row).on_conflict_do_nothing()
        inserted = connection.execute(new.returning(checkpoints.c.step)).all()
        result.count(len(inserted), 1)


def of_run(store: Store, run: str) -> list[schema.CheckpointRecord]:
    """All checkpoints of a run by step. Raises ``UnknownRun``."""
    columns = (checkpoints.c.step, checkpoints.c.time, checkpoints.c.path)
    with store.reading() as connection:
        query = select(*columns).where(checkpoints.c.run == require_run(connection, run).key)
        rows = connection.execute(query.order_by(checkpoints.c.step)).all()
    return [schema.CheckpointRecord(**row._asdict()) for row in rows]
