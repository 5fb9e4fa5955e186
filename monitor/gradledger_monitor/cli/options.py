"""Options of several commands: the settings, the database, and the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from sqlalchemy.exc import ArgumentError

from gradledger.delivery.http_client import Client
from gradledger.settings import Settings as HookSettings
from gradledger_monitor.config.settings import Settings, setting_names
from gradledger_monitor.config.sources import environment_variable, origin
from gradledger_monitor.store.database import Store

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

DatabaseOption = Annotated[str | None, typer.Option("--db", help="SQLAlchemy URL of the database.")]


def settings(**options: Any) -> Settings:
    """The settings; options override them. Exits with a message if a setting is invalid."""
    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        raise typer.BadParameter(problems(error)) from error
    except ValueError as error:  # an unreadable file, or invalid JSON in a variable
        raise typer.BadParameter(str(error)) from error


def client(url: str, hooks: HookSettings, option: str) -> Client:
    """A client of the service at a URL, with the token and the proxy of the hooks' settings."""
    try:
        return Client(url, hooks.token, hooks.proxy)
    except ValueError as error:
        raise typer.BadParameter(f"{error}", param_hint=option) from error


def problems(error: ValidationError) -> str:
    """The invalid settings, each with the variable or the file that sets it."""
    return "; ".join(
        f"{_set_by(str(e['loc'][0]))}{_value(e)}: {e['msg']}" if e["loc"] else e["msg"]
        for e in error.errors()
    )


def _set_by(name: str) -> str:
    """Where a setting gets its value, as a reader finds it."""
    variable = environment_variable(name)
    source = origin(Settings, setting_names, name) or variable
    return source if source.startswith(variable) else f"{source}: {name}"


def _value(error: ErrorDetails) -> str:
    """The text in place of a number or a flag; other values may contain a secret."""
    is_shown = error["type"] in ("int_parsing", "float_parsing", "bool_parsing")
    return f"={str(error['input'])[:40]}" if is_shown else ""


# Raised by Store() for a URL that names no usable database.
DATABASE_ERRORS = (ValueError, ArgumentError, ModuleNotFoundError, OSError)


@contextmanager
def database(url: str, *, migrated: bool = True) -> Iterator[Store]:
    """Open the database for a block. Exits with a message if the URL names no usable one."""
    try:
        store = Store(url)
    except DATABASE_ERRORS as error:
        raise typer.BadParameter(f"{error}", param_hint="--db") from error
    try:
        if migrated:
            store.migrate()
        yield store
    finally:
        store.close()
