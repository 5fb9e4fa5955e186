"""Where data lie: the only place that knows, the same in a checkout and in a wheel."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path


def migrations_folder() -> Path:
    """The Alembic environment, as installed."""
    return Path(str(files("gradledger_migrations")))


def data_folder() -> Path:
    """The user's own folder for the embedded database."""
    return Path.home() / ".gradledger"


def configuration_file() -> Path:
    """The TOML file with settings, which need not exist unless ``GRADLEDGER_CONFIG`` names it."""
    named = os.environ.get("GRADLEDGER_CONFIG")
    return Path(named) if named else data_folder() / "gradledger.toml"
