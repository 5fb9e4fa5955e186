"""Paths of data and files: the only module that defines them, for checkouts and wheels."""

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
    """The TOML file with settings. It is optional unless ``GRADLEDGER_CONFIG`` names it."""
    path = os.environ.get("GRADLEDGER_CONFIG")
    return Path(path) if path else data_folder() / "gradledger.toml"
