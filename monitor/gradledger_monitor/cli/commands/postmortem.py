"""``gradledger postmortem``: what went wrong in a run, as a file to attach to an incident."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from gradledger_monitor.cli.options import GivenDatabase
from gradledger_monitor.cli.run_argument import looking_at
from gradledger_monitor.reports.incident import build_incident
from gradledger_monitor.reports.render import FORMATS


class Format(str, Enum):
    """How it is written."""

    html = "html"
    md = "md"
    json = "json"


def postmortem(
    run: Annotated[
        str, typer.Argument(help="A run's id or name; or an archive or log that holds it.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file; - is standard output.")
    ] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="By default what the file's name says.")
    ] = None,
    db: GivenDatabase = None,
) -> None:
    """Write down what went wrong: when it began, what it cost, from where to go on.

    The HTML is one file that needs no network.
    """
    form = format_ or _named(output) or Format.html
    with looking_at(run, db) as found:
        text = FORMATS[form.value](build_incident(found.store, found.run))
        path = output or Path(f"postmortem-{found.run}.{form.value}")
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"gradledger postmortem: {path}: {error.strerror}", err=True)
        raise typer.Exit(1) from error
    typer.echo(path)


def _named(output: Path | None) -> Format | None:
    ending = output.suffix.lstrip(".") if output else ""
    known = {"markdown": "md", "htm": "html"}.get(ending, ending)
    return Format(known) if known in {form.value for form in Format} else None
