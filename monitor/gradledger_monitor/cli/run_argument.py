"""The argument RUN of several commands: an id, a name, an archive or a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer
from sqlalchemy.exc import ArgumentError

from gradledger_monitor.archive.format import DamagedArchive
from gradledger_monitor.cli.options import settings
from gradledger_monitor.importers.metric_log import UnreadableLog
from gradledger_monitor.runs.resolve import open_runs
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import UnknownRun


@dataclass(frozen=True)
class OpenedRun:
    """A run and its store."""

    store: Store
    run: str


@contextmanager
def open_run(reference: str, db: str | None) -> Iterator[OpenedRun]:
    """Open a run for a block. Exits with a message if there is no such run, or several."""
    current = settings(db=db)
    try:
        with open_runs(reference, current.db, current.rule_overrides) as opened:
            if len(opened.runs) != 1:
                names = ", ".join(opened.runs) or "none"
                reason = (
                    f"{reference} has {len(opened.runs)} runs ({names}). Import it, then pass one"
                )
                raise typer.BadParameter(reason)
            yield OpenedRun(opened.store, opened.runs[0])
    except UnknownRun as error:
        reason = f"there is no run {error.args[0]!r} in this database, and no such file"
        raise typer.BadParameter(reason) from error
    except (DamagedArchive, UnreadableLog) as error:
        raise typer.BadParameter(str(error)) from error
    except (ArgumentError, ModuleNotFoundError) as error:
        raise typer.BadParameter(f"{error}", param_hint="--db") from error
