"""Where data lie: the only place that knows, the same in a checkout and in a wheel."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def migrations_folder() -> Path:
    """The Alembic environment, as installed."""
    return Path(str(files("gradledger_migrations")))


def data_folder() -> Path:
    """The user's own folder for the embedded database."""
    return Path.home() / ".gradledger"
