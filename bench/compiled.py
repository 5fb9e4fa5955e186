"""The two ways in which facts and rules come: as Python, and compiled (``make compiled``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WAY = ", compiled"  # ends the names of its measures
FOLDER = Path(__file__).resolve().parent.parent / "build" / "compiled"


def ways() -> dict[str, dict[str, str]]:
    """The environment of each way that is at hand, by what ends the names of its measures."""
    ready = (FOLDER / ".ready").exists()
    return {"": {}, **({WAY: {"PYTHONPATH": str(FOLDER)}} if ready else {})}


def told(environment: dict[str, str], script: str, *arguments: str) -> Any:
    """What a benchmark prints as JSON that runs in a process of its own."""
    command = [sys.executable, script, *arguments]
    ran = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(ran.stdout)
