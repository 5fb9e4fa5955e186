"""``gradledger config``: every setting, its value, and where that comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradledger_monitor.cli.configuration import settings
from gradledger_monitor.printable import printable
from gradledger_monitor.settings import Settings, names
from gradledger_monitor.shown import shown
from gradledger_monitor.sources import origins, variable

DEFAULTS_OF_THE_USER = {"db": "sqlite:///~/.gradledger/gradledger.db"}


def config(
    write: Annotated[
        Path | None, typer.Option(help="Write the page about all settings there.", dir_okay=False)
    ] = None,
) -> None:
    """Print the configuration as `gradledger serve` would read it, secrets hidden."""
    if write is not None:
        write.write_text(page())
        return
    read = settings()
    said = origins(Settings, names)
    for name in Settings.model_fields:
        value = printable(shown(name, getattr(read, name)))
        typer.echo(f"{variable(name)}={value}  ({said.get(name, 'default')})")
    typer.echo(f"# callers {'must show a token' if read.guarded else 'need no token'}")


def page() -> str:
    """The page of the documentation about all settings."""
    lines = [
        "# Settings",
        "",
        "Written by `gradledger config --write docs/settings.md`.",
        "[How they are set](operations.md#settings).",
        "",
        "| variable | default | |",
        "|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        default = shown(name, field.get_default(call_default_factory=True))
        default = DEFAULTS_OF_THE_USER.get(name, default)
        told = f"`{default}`" if default else ""
        lines.append(f"| `{variable(name)}` | {told} | {field.description} |")
    return "\n".join(lines) + "\n"
