"""Starts ``gradledger run`` and ``gradledger check`` in a clean environment, as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.command import gradledger
from helpers.patience import HANGS

GRADLEDGER = [sys.executable, "-m", "gradledger.cli"]
TRAIN = Path(__file__).parents[1] / "integration" / "launcher" / "scripts" / "train.py"
CLASSIC, CORRECTED = "mean-of-means", "token-mean"  # loops of TRAIN
UNEQUAL = "reduction.token_weights_unequal"  # what is wrong with CLASSIC
# Prints whether the hooks started.
STARTED = """
import torch, sys
import gradledger.session
print(gradledger.__file__, gradledger.session._session is not None)
"""
SHAPE = {
    "run", "verdict", "steps", "ranks", "findings", "tree", "coverage", "objectives", "topology",
    "commit", "dirty",
}  # fmt: skip
FINDING_SHAPE = {
    "rule", "severity", "first_step", "last_step", "steps", "title", "summary", "fix",
    "fix_is_generic", "evidence", "inhibited_by", "acknowledged", "code",
}  # fmt: skip

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(home: Path) -> dict[str, str]:
    """The environment without gradledger variables."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GRADLEDGER_")}
    clean.pop("PYTHONPATH", None)
    return {**clean, "HOME": str(home), "OMP_NUM_THREADS": "1"}


def launcher(environ: dict[str, str], folder: Path) -> Launch:
    """Runs `gradledger WORDS...` until it ends; keyword arguments are environment variables."""

    def launch(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
        arguments, env = [*map(str, words)], {**environ, **more}
        if arguments[:1] == ["check"]:
            return gradledger(*arguments, environment=env, folder=folder)
        command = [*GRADLEDGER, *arguments]
        return subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, timeout=HANGS
        )

    return launch


def train(loop: str, steps: int, python: str = "python") -> list[str]:
    """The command of a training."""
    return [python, str(TRAIN), loop, str(steps)]


def verdict(path: Path) -> dict[str, Any]:
    """The verdict file; checks its structure."""
    report: dict[str, Any] = json.loads(path.read_text())
    assert set(report) - {"reason"} == SHAPE
    assert ("reason" in report) == (report["steps"] == 0)
    assert all(set(finding) == FINDING_SHAPE for finding in report["findings"])
    answer = {"node", "question", "status", "reason", "past"}
    assert all(set(node) == answer for node in report["tree"])
    return report


def bare_environment(folder: Path) -> Path:
    """The Python of a new environment without gradledger."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"
