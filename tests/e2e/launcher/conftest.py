"""Starts `gradledger` and all that it starts as new interpreters."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.launching import Launch, environment, launcher


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment without gradledger variables, with a temporary home."""
    return environment(tmp_path)


@pytest.fixture
def launch(environ: dict[str, str], tmp_path: Path) -> Launch:
    """Runs `gradledger WORDS...` until it ends; keyword arguments are environment variables."""
    return launcher(environ, tmp_path)
