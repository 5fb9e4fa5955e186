"""``gradledger postmortem``: write the post-mortem of a run to a file."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from gradledger_monitor.cli.options import DatabaseOption
from gradledger_monitor.cli.run_argument import open_run
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.reports.incident import build_incident
from gradledger_monitor.reports.render import FORMATS, html


class Format(str, Enum):
    """The format of the file."""

    html = "html"
    md = "md"
    json = "json"


def postmortem(
    run: Annotated[str, typer.Argument(help="The id or name of a run, an archive, or a log.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file; - writes to standard output.")
    ] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="By default from the suffix of the file.")
    ] = None,
    db: DatabaseOption = None,
) -> None:
    """Write a post-mortem: the first bad step, its cost, and the checkpoint to restart from.

    The HTML is one file that needs no network.
    """
    chosen = format_ or _format_of(output) or Format.html
    with open_run(run, db) as opened:
        incident = build_incident(opened.store, opened.run)
        url = Settings().public_url or ""
        text = html(incident, url) if chosen is Format.html else FORMATS[chosen.value](incident)
        path = output or Path(f"postmortem-{opened.run}.{chosen.value}")
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"gradledger postmortem: {path}: {error.strerror}", err=True)
        raise typer.Exit(1) from error
    typer.echo(path)


def _format_of(output: Path | None) -> Format | None:
    suffix = output.suffix.lstrip(".") if output else ""
    name = {"markdown": "md", "htm": "html"}.get(suffix, suffix)
    return Format(name) if name in {format_.value for format_ in Format} else None
