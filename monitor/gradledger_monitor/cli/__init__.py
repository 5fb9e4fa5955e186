"""The command line of the service: one module for each command, registered here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import typer
from sqlalchemy.exc import DatabaseError

from gradledger_monitor.cli.commands import alerts, db, token
from gradledger_monitor.cli.commands.acknowledge import acknowledge
from gradledger_monitor.cli.commands.check import INCOMPLETE, check
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
from gradledger_monitor.workers.evaluator import EvaluationFailed

INTERRUPTED = 130  # as a shell does

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


@cache
def command() -> Callable[..., Any]:
    """The command line; reading the signatures of all commands takes 50 ms."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line. A mistake of the caller exits with one line on standard error."""
    try:
        status = command()(prog_name="gradledger", standalone_mode=False)
    except typer.Abort:
        _fail("gradledger: interrupted", INTERRUPTED)
    except DatabaseError as error:
        reason = unusable(error)
        if reason is None:  # a bug in gradledger
            raise
        _fail(f"gradledger: {reason}")
    except UnknownRevision as error:
        _fail(f"gradledger: the database (GRADLEDGER_DB) {error}.")
    except EvaluationFailed as error:
        _fail(f"gradledger: {error}", INCOMPLETE)
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"gradledger: {error.filename}: {error.strerror}")
    except Exception as error:
        line = _usage_line(error)
        if line is None:
            raise
        _fail(line)
    sys.exit(status if isinstance(status, int) else 0)


def _usage_line(error: Exception) -> str | None:
    """The line for an error of Click, empty if it printed the help; None for any other error.

    Click's classes are not imported: newer versions of Typer bring their own copies.
    """
    describe: Callable[[], str] | None = getattr(error, "format_message", None)
    if describe is None:
        return None
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    command = getattr(getattr(error, "ctx", None), "command_path", "gradledger")
    reason = " ".join(describe().split()).removeprefix("Invalid value: ")
    reason = reason.replace("Value error, ", "")  # of pydantic
    end = "" if reason.endswith("?") else "."
    return f"{command}: {reason.rstrip('.')}{end} `{command} --help` lists the options."


def _fail(line: str, status: int = 2) -> NoReturn:
    if line:
        print(line, file=sys.stderr)
    sys.exit(status)
