"""What commands share: the settings as they are, and the database they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from sqlalchemy.exc import ArgumentError

from gradledger_monitor.config.settings import Settings
from gradledger_monitor.config.sources import environment_variable
from gradledger_monitor.store.database import Store

GivenDatabase = Annotated[str | None, typer.Option("--db", help="SQLAlchemy URL of the database.")]


def settings(**given: Any) -> Settings:
    """The settings; what was given on the command line comes first. Ends where one is wrong."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        wrong = [f"{environment_variable(str(e['loc'][0]))}: {e['msg']}" for e in error.errors()]
        raise typer.BadParameter("; ".join(wrong)) from error
    except ValueError as error:  # of a file, or of JSON in a variable
        raise typer.BadParameter(str(error)) from error


# what opening one raises where its URL names none that can be had
NO_DATABASE = (ValueError, ArgumentError, ModuleNotFoundError, OSError)


@contextmanager
def database(url: str, *, migrated: bool = True) -> Iterator[Store]:
    """The database for the length of a block. Ends where the URL names none."""
    try:
        store = Store(url)
    except NO_DATABASE as error:
        raise typer.BadParameter(f"{error}", param_hint="--db") from error
    try:
        if migrated:
            store.migrate()
        yield store
    finally:
        store.close()
