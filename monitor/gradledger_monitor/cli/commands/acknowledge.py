"""``gradledger acknowledge``: a person's word on a finding, in the database of the service."""

from __future__ import annotations

import getpass
import time
from datetime import datetime
from typing import Annotated

import typer
from sqlalchemy.exc import ArgumentError

from gradledger_monitor.config.settings import Settings
from gradledger_monitor.model.findings import Acknowledgement
from gradledger_monitor.runs.resolve import find_run
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import UnknownRun


def acknowledge(
    run: Annotated[str, typer.Argument(help="The run's id, or its name.")],
    rule: Annotated[str, typer.Argument(help="The rule that found something.")],
    note: Annotated[str | None, typer.Option(help="Why it is known, and all right.")] = None,
    by: Annotated[str | None, typer.Option(help="Who says so; else who is logged in.")] = None,
    until: Annotated[
        datetime | None, typer.Option(help="From then on, in local time, it is news again.")
    ] = None,
    take_back: Annotated[bool, typer.Option("--take-back", help="Forget what was said.")] = False,
    db: Annotated[str | None, typer.Option(help="SQLAlchemy URL of the database.")] = None,
) -> None:
    """Mark what a rule found in a run as known: it stays in the verdict, with the note.

    Once it is resolved and comes back, it is news again.
    """
    if take_back == (note is not None):
        raise typer.BadParameter("either --note or --take-back", param_hint="--note")
    store = _store(db)
    try:
        found = find_run(store, run)
        if note is None:
            acknowledgements.remove_acknowledgement(store, found, rule)
        else:
            acknowledgements.acknowledge(store, found, rule, _said(note, by, until))
    except UnknownRun as error:
        raise typer.BadParameter(f"there is no run {run!r} in this database") from error
    except NoSuchFinding as error:
        raise typer.BadParameter(f"{error}") from error
    finally:
        store.close()


def _said(note: str, by: str | None, until: datetime | None) -> Acknowledgement:
    now = time.time()
    if not note.strip():
        raise typer.BadParameter("say why", param_hint="--note")
    if until is not None and until.timestamp() <= now:
        raise typer.BadParameter("must lie in the future", param_hint="--until")
    return Acknowledgement(note.strip(), by or _user(), now, until.timestamp() if until else None)


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may know no name for its user
        return None


def _store(db: str | None) -> Store:
    try:
        store = Store(db or Settings().db)
        store.migrate()
    except (ValueError, ArgumentError, ModuleNotFoundError) as error:
        raise typer.BadParameter(f"{error}", param_hint="--db") from error
    return store
