"""Starts `gradledger` in a separate process; the trainings under it are forks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers import forkserver
from helpers.launching import Launch, environment, launcher


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `python` that has imported torch before it runs a script."""
    return forkserver.executable(tmp_path_factory.mktemp("bin")).parent


@pytest.fixture
def environ(tmp_path: Path, programs: Path) -> dict[str, str]:
    """The environment without gradledger variables, with a temporary home and this `python`."""
    clean = environment(tmp_path)
    return {**clean, "PATH": f"{programs}{os.pathsep}{clean['PATH']}"}


@pytest.fixture
def launch(environ: dict[str, str], tmp_path: Path) -> Launch:
    """Runs `gradledger WORDS...` until it ends; keyword arguments are environment variables."""
    return launcher(environ, tmp_path)
