"""Starts a script once for each rank, and reads what each of them wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).parent.parent
SECONDS = 240


def play(script: Path, folder: Path, ranks: int = 2) -> list[Any]:
    """``python script RANK STORE OUTPUT`` on every rank; no word of gradledger's is let pass."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    outputs = [folder / f"rank{rank}.pt" for rank in range(ranks)]
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(folder / "store"), str(output)],
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, output in enumerate(outputs)
    ]
    complaints = [process.communicate(timeout=SECONDS)[1] for process in started]
    for process, complaint in zip(started, complaints, strict=True):
        assert process.returncode == 0, "\n".join(complaints)
        assert "gradledger" not in complaint, complaint
    return [torch.load(output) for output in outputs]
