"""The two builds of facts and rules: as Python, and compiled (``make compiled``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COMPILED = ", compiled"  # ends the names of its measures
FOLDER = Path(__file__).resolve().parent.parent / "build" / "compiled"


def available() -> dict[str, dict[str, str]]:
    """The environment of each available build, by the suffix of its measurements."""
    ready = (FOLDER / ".ready").exists()
    return {"": {}, **({COMPILED: {"PYTHONPATH": str(FOLDER)}} if ready else {})}


def run_json(environment: dict[str, str], script: str, *arguments: str) -> Any:
    """Run a benchmark in a separate process; returns the JSON that it prints."""
    command = [sys.executable, script, *arguments]
    ran = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(ran.stdout)
