"""Starts a script once for each rank, and reads the output of each.

A rank leaves its process group as it is. The destructor of one that uses gloo may wait for a thread
that waits for the GIL.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from helpers.forkserver import Python
from helpers.patience import HANGS

TESTS = Path(__file__).parent.parent


def play(script: Path, folder: Path, ranks: int = 2) -> list[Any]:
    """``python script RANK STORE OUTPUT`` on every rank; the hooks print nothing."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environ = {**os.environ, "PYTHONPATH": path}
    store, outputs = folder / "store", [folder / f"rank{rank}.pt" for rank in range(ranks)]
    processes = [
        Python([script, rank, store, output], environ) for rank, output in enumerate(outputs)
    ]
    stderr = [process.communicate(HANGS)[1] for process in processes]
    for process, text in zip(processes, stderr, strict=True):
        assert process.wait() == 0, "\n".join(stderr)
        assert "gradledger:" not in text, text
    return [torch.load(output) for output in outputs]
