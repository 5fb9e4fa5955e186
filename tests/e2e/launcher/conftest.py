"""Starts `gradledger` in a separate process, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.command import gradledger
from helpers.patience import HANGS

GRADLEDGER = [sys.executable, "-m", "gradledger.cli"]

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment without gradledger variables, with a temporary home."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GRADLEDGER_")}
    clean.pop("PYTHONPATH", None)
    return {**clean, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def launch(environ: dict[str, str], tmp_path: Path) -> Launch:
    """Runs `gradledger WORDS...` until it ends; keyword arguments are environment variables."""

    def start(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
        arguments, env = [*map(str, words)], {**environ, **more}
        if arguments[:1] == ["check"]:
            return gradledger(*arguments, environment=env, folder=tmp_path, seconds=HANGS)
        command = [*GRADLEDGER, *arguments]
        return subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS
        )

    return start
