"""Two ranks, started once for all tests that look at what they wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.patience import HANGS

HERE = Path(__file__).parent
TESTS = HERE.parent.parent
RANKS = 2

Ranks = list[dict[str, Any]]  # what each rank of two_ranks.py wrote


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Everything that two_ranks.py does, done once."""
    folder = tmp_path_factory.mktemp("ranks")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    outputs = [folder / f"rank{rank}.pt" for rank in range(RANKS)]
    started = [
        subprocess.Popen(
            [sys.executable, HERE / "two_ranks.py", str(rank), str(folder / "store"), output],
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, output in enumerate(outputs)
    ]
    for process in started:
        _, complaint = process.communicate(timeout=HANGS)
        assert process.returncode == 0, complaint
    return [torch.load(output) for output in outputs]
