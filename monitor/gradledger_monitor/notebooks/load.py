"""Finds what ``gradledger.load`` was asked for, and keeps it open as long as somebody looks."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from os import PathLike, fspath

from gradledger_monitor.config.settings import Settings
from gradledger_monitor.notebooks.runs import OpenStore, Run, Runs
from gradledger_monitor.runs.resolve import open_database, open_runs
from gradledger_monitor.store.runs import queries

MOST_RUNS = 10_000


def load(source: str | PathLike[str] | None = None, *, db: str | None = None) -> Runs:
    """Runs, newest first: of the database, of one file, or the one with this id or name.

    ``source`` is an archive, the log of another tool, the URL of a database, or a run's id or
    name in ``db``; without it, all runs of ``db``, by default the service's own database.

    Raises LookupError for a run that is not there, ValueError for a file that makes no sense.
    """
    stack = ExitStack()
    said = None if source is None else fspath(source)
    if said is None or "://" in said:
        store = stack.enter_context(open_database(said or db or Settings().db))
        ids = [row.id for row in queries.list_runs(store, MOST_RUNS)]
    else:
        found = stack.enter_context(open_runs(said, db or Settings().db))
        store, ids = found.store, found.runs
    held = OpenStore(store)
    weakref.finalize(held, stack.close)
    return Runs([Run(held, run) for run in ids])
