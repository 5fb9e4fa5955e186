"""``gradledger acknowledge``: acknowledge a finding in the database of the service."""

from __future__ import annotations

import getpass
import time
from datetime import datetime
from typing import Annotated

import typer

from gradledger_monitor.cli.options import DatabaseOption, database, settings
from gradledger_monitor.model.findings import Acknowledgement
from gradledger_monitor.runs.resolve import find_run
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.runs.queries import UnknownRun


def acknowledge(
    run: Annotated[str, typer.Argument(help="The id or name of the run.")],
    rule: Annotated[str, typer.Argument(help="The rule of the finding.")],
    note: Annotated[
        str | None, typer.Option(help="Why this is acceptable, or who is working on it.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Your name; by default the current user.")] = None,
    until: Annotated[
        datetime | None, typer.Option(help="Snooze until then, in local time.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Remove the acknowledgement.")] = False,
    db: DatabaseOption = None,
) -> None:
    """Acknowledge a finding: it stays in the verdict with the note and sends no alerts.

    The acknowledgement ends when the finding is resolved and appears again.
    """
    if undo == (note is not None):
        raise typer.BadParameter("pass either --note or --undo", param_hint="--note")
    acknowledgement = None if note is None else _acknowledgement(note, by, until)
    with database(settings(db=db).db) as store:
        try:
            run = find_run(store, run)
            if acknowledgement is None:
                acknowledgements.remove_acknowledgement(store, run, rule)
            else:
                acknowledgements.acknowledge(store, run, rule, acknowledgement)
        except UnknownRun as error:
            raise typer.BadParameter(f"there is no run {run!r} in this database") from error
        except NoSuchFinding as error:
            raise typer.BadParameter(f"{error}") from error


def _acknowledgement(note: str, by: str | None, until: datetime | None) -> Acknowledgement:
    now = time.time()
    if not note.strip():
        raise typer.BadParameter(
            "the note is empty; write why this is acceptable", param_hint="--note"
        )
    if until is not None and until.timestamp() <= now:
        raise typer.BadParameter(f"{until} is not in the future", param_hint="--until")
    return Acknowledgement(note.strip(), by or _user(), now, until.timestamp() if until else None)


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no name for its user
        return None
