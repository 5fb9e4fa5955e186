"""Who this process is: which run it belongs to, and which rank it is in it."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import sys
import time
from collections.abc import Mapping
from typing import Any


def rank_and_world(environ: Mapping[str, str]) -> tuple[int, int]:
    """Rank and world size, from torch.distributed if it is initialised, else the environment."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    try:
        return int(environ.get("RANK", 0)), max(1, int(environ.get("WORLD_SIZE", 1)))
    except ValueError:
        return 0, 1


def run_id(environ: Mapping[str, str], world_size: int) -> str:
    """The run's identity: equal on all ranks of one launch, different for every launch.

    ``GRADLEDGER_RUN`` is shared by everything that one command starts, which may be several
    trainings one after the other; what follows it tells the launches apart.
    """
    base = environ.get("GRADLEDGER_RUN") or time.strftime("%Y%m%d-%H%M%S")
    if world_size == 1:
        return f"{base}-{secrets.token_hex(3)}"
    return f"{base}-{hashlib.sha256(_launch(environ).encode()).hexdigest()[:6]}"


def _launch(environ: Mapping[str, str]) -> str:
    """What all ranks of one launch have in common, and no other launch."""
    names = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"]
    names += ["SLURM_JOB_ID", "SLURM_STEP_ID"]
    parts = [environ.get(name, "") for name in names]
    one_node = environ.get("LOCAL_WORLD_SIZE") == environ.get("WORLD_SIZE")
    if one_node and "SLURM_STEP_ID" not in environ:
        parts.append(str(os.getppid()))  # the launcher
    return "|".join(parts)


def environment() -> dict[str, str]:
    """Versions and host, as a post-mortem wants to know them."""
    torch: Any = sys.modules.get("torch")
    facts = {
        "python": platform.python_version(),
        "torch": str(getattr(torch, "__version__", "not imported")),
        "host": platform.node(),
        "command": " ".join(sys.argv)[:512],
    }
    for package in ("transformers", "accelerate", "lightning", "deepspeed", "torchtune"):
        module = sys.modules.get(package)
        if module is not None:
            facts[package] = str(getattr(module, "__version__", "unknown"))
    return facts
