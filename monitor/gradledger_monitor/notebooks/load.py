"""``gradledger.load``: opens runs, and closes their store when the last of them is released."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from os import PathLike, fspath

from gradledger_monitor.config.settings import Settings
from gradledger_monitor.notebooks.runs import OpenStore, Run, Runs
from gradledger_monitor.runs.resolve import open_database, open_runs
from gradledger_monitor.store.runs import queries

MAX_RUNS = 10_000


def load(source: str | PathLike[str] | None = None, *, db: str | None = None) -> Runs:
    """Load runs, newest first: those of a database, of a file, or one by id or name.

    ``source`` is an archive, the log of another tool, the URL of a database, or a run's id or
    name in ``db``; without it, all runs of ``db``, by default the service's own database.

    Raises LookupError for an unknown run, ValueError for an unreadable file.
    """
    stack = ExitStack()
    reference = None if source is None else fspath(source)
    if reference is None or "://" in reference:
        store = stack.enter_context(open_database(reference or db or Settings().db))
        ids = [row.id for row in queries.list_runs(store, MAX_RUNS)]
    else:
        opened = stack.enter_context(open_runs(reference, db or Settings().db))
        store, ids = opened.store, opened.runs
    open_store = OpenStore(store, Settings().public_url or "")
    weakref.finalize(open_store, stack.close)
    return Runs([Run(open_store, run) for run in ids])
