"""What commands share that look at one run, by whatever name."""

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
class Found:
    """A run and the store that it is in."""

    store: Store
    run: str


@contextmanager
def looking_at(reference: str, db: str | None) -> Iterator[Found]:
    """A run by id, name, archive or log. Ends with what to do where there is none, or several."""
    given = settings(db=db)
    try:
        with open_runs(reference, given.db, given.rule_overrides) as found:
            if len(found.runs) != 1:
                runs = ", ".join(found.runs) or "none"
                why = f"{reference} holds {len(found.runs)} runs ({runs}); import it, and name one"
                raise typer.BadParameter(why)
            yield Found(found.store, found.runs[0])
    except UnknownRun as error:
        why = f"there is no run {error.args[0]!r} in this database, and no such file"
        raise typer.BadParameter(why) from error
    except (DamagedArchive, UnreadableLog) as error:
        raise typer.BadParameter(str(error)) from error
    except (ArgumentError, ModuleNotFoundError) as error:
        raise typer.BadParameter(f"{error}", param_hint="--db") from error
