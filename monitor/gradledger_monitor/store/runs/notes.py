"""Notes that people write about runs: one text for each run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass

from sqlalchemy import delete, insert, select

from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.tables import notes, runs


@dataclass(frozen=True)
class Note:
    """A text about a run, by whom and when."""

    text: str
    by: str | None
    at: float  # Unix seconds


def write(store: Store, run: str, note: Note) -> None:
    """Store the note of a run in place of an earlier one; an empty one is none.

    Raises ``UnknownRun``.
    """
    with store.writing() as connection:
        key = require_run(connection, run).key
        connection.execute(delete(notes).where(notes.c.run == key))
        if note.text:
            connection.execute(insert(notes).values(run=key, **asdict(note)))


def notes_of(store: Store, ids: Collection[str]) -> dict[str, Note]:
    """The notes of runs by id."""
    query = select(runs.c.id, notes.c.text, notes.c.by, notes.c.at)
    query = query.join(notes, notes.c.run == runs.c.key).where(runs.c.id.in_(ids))
    with store.reading() as connection:
        return {run: Note(*values) for run, *values in connection.execute(query)}
