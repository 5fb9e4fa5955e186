"""``gradledger config``: every setting, its value, and where that comes from."""

from __future__ import annotations

import json
from typing import Any

import typer
from pydantic import BaseModel, SecretStr
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from gradledger_monitor.cli.configuration import settings
from gradledger_monitor.printable import printable
from gradledger_monitor.settings import Settings, names
from gradledger_monitor.sources import origins, variable


def config() -> None:
    """Print the configuration as `gradledger serve` would read it, secrets hidden."""
    read = settings()
    said = origins(Settings, names)
    for name in Settings.model_fields:
        value = printable(shown(name, getattr(read, name)))
        typer.echo(f"{variable(name)}={value}  ({said.get(name, 'default')})")
    typer.echo(f"# callers {'must show a token' if read.guarded else 'need no token'}")


def shown(name: str, value: Any) -> str:
    """A value as it may be shown to anyone."""
    if isinstance(value, SecretStr):
        return "(set, hidden)"
    if name == "db":
        return _without_password(value)
    if isinstance(value, list):
        value = [v.model_dump(mode="json") if isinstance(v, BaseModel) else v for v in value]
    return value if isinstance(value, str) else json.dumps(value) if value is not None else ""


def _without_password(url: str) -> str:
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:  # whatever it is, it may hold a password
        return "(not a database URL)"
