"""The command line of the service: one module for each command, registered here."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer
from sqlalchemy.exc import DatabaseError

from gradledger_monitor.cli.commands import alerts, db, token
from gradledger_monitor.cli.commands.acknowledge import acknowledge
from gradledger_monitor.cli.commands.check import check
from gradledger_monitor.cli.commands.compare import compare
from gradledger_monitor.cli.commands.config import config
from gradledger_monitor.cli.commands.demo import demo
from gradledger_monitor.cli.commands.export import export
from gradledger_monitor.cli.commands.import_ import import_
from gradledger_monitor.cli.commands.postmortem import postmortem
from gradledger_monitor.cli.commands.replay import replay
from gradledger_monitor.cli.commands.rules import rules
from gradledger_monitor.cli.commands.serve import serve
from gradledger_monitor.store.database import UnknownRevision
from gradledger_monitor.store.failures import unusable

app = typer.Typer(
    name="gradledger",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback()
def gradledger() -> None:
    """Name the silent gradient-accumulation bugs of a PyTorch training run."""


# In the order of the help.
app.command(context_settings={"allow_interspersed_args": False})(check)
app.command()(demo)
app.command()(serve)
app.command()(rules)
app.command("import")(import_)
app.command()(export)
app.command()(postmortem)
app.command()(replay)
app.command()(compare)
app.command()(acknowledge)
app.add_typer(token.app, name="token")
app.add_typer(alerts.app, name="alerts")
app.add_typer(db.app, name="db")
app.command()(config)


def main() -> None:
    """Run the command line. An unusable database exits with status 2 and one line."""
    try:
        app()
    except DatabaseError as error:
        reason = unusable(error)
        if reason is None:  # a bug in gradledger
            raise
        _fail(reason)
    except UnknownRevision as error:
        _fail(f"the database (GRADLEDGER_DB) {error}.")


def _fail(reason: str) -> NoReturn:
    print(f"gradledger: {reason}", file=sys.stderr)
    sys.exit(2)
