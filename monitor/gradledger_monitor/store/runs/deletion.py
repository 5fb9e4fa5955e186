"""Deletion of runs."""

from __future__ import annotations

from sqlalchemy import delete

from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.tables import runs


def delete_run(store: Store, run: str) -> None:
    """Delete a run. The database deletes its rows in other tables. Raises ``UnknownRun``.

    Messages that were sent stay listed, and comments, which belong to a rule.
    """
    with store.writing() as connection:
        connection.execute(delete(runs).where(runs.c.key == require_run(connection, run).key))
