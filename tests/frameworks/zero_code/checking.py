"""Runs a training script of one of the environments that make builds, under `gradledger check`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[2] / ".venvs"
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def python_of(environment: str) -> Path:
    """The interpreter of an environment. gradledger is not installed there."""
    return ENVIRONMENTS / environment / "bin" / "python"


def check(environment: str, script: list[str], report: Path) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON report of `gradledger check` on a script of this folder."""
    gradledger = [str(Path(sys.executable).parent / "gradledger"), "check", "--json", str(report)]
    command = [str(python_of(environment)), str(HERE / script[0]), *script[1:]]
    done = subprocess.run(
        [*gradledger, "--", *command], env=ONE_THREAD, cwd=report.parent, timeout=300
    )
    return done.returncode, json.loads(report.read_text())
