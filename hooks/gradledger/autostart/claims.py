"""Tells the trainings of one command apart, so that none is taken for a repetition of another.

A script may train twice, or be restarted by torchrun: the second training says ``RUN.2``. All
ranks of one training were started by one parent and agree; a symbolic link is made atomically and
carries who made it.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path


def claim(run: str, world_size: int = 1) -> str:
    """The run id under which this process speaks; ask once, when its first step is due."""
    folder = os.environ.get("GRADLEDGER_CLAIMS")
    if not folder or not Path(folder).is_dir():
        return run
    number = _number(Path(folder), _training(world_size))
    return run if number == 1 else f"{run}.{number}"


def _training(world_size: int) -> str:
    """What all ranks of one training on this machine have in common, and no other training."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"{os.getppid()}-{restart}" if world_size > 1 else str(os.getpid())


def _number(folder: Path, training: str) -> int:
    for number in count(1):
        try:
            (folder / str(number)).symlink_to(training)
        except FileExistsError:
            if os.readlink(folder / str(number)) != training:
                continue
        return number
    raise AssertionError("count() does not end")
