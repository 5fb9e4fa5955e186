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

from gradledger import provenance


def rank_and_world(environ: Mapping[str, str]) -> tuple[int, int]:
    """Rank and world size, from torch.distributed if it is initialised, else the environment."""
    dist = _initialised()
    if dist is not None:
        return dist.get_rank(), dist.get_world_size()
    try:
        rank, world = int(environ.get("RANK", 0)), int(environ.get("WORLD_SIZE", 1))
    except ValueError:
        return 0, 1
    return (rank, world) if 0 <= rank < world else (0, 1)


def run_id(base: str | None, environ: Mapping[str, str], world_size: int, nth: int = 1) -> str:
    """The run's identity: equal on all ranks of one launch, different for every launch.

    ``base`` is shared by everything that one command starts, which may be several trainings one
    after the other, and ``nth`` counts those of one process; what follows tells them apart.
    """
    base = base or time.strftime("%Y%m%d-%H%M%S")
    mine = f"{base}-{secrets.token_hex(3)}"
    if world_size == 1:
        return mine
    return _agreed(environ, mine, nth) or f"{base}-{_digest(_launch(environ, nth))}"


def _initialised() -> Any:
    """``torch.distributed``, if the script has started it."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def _agreed(environ: Mapping[str, str], mine: str, nth: int) -> str | None:
    """What the first rank to get there proposed, kept in the store that the launch began with.

    No collective: each rank asks once, in its own time. A store belongs to one launch, whatever
    the launcher, on however many nodes, and it was needed a moment ago to build the process group.
    """
    dist = _initialised()
    if dist is None:
        return None
    key = f"gradledger/{environ.get('TORCHELASTIC_RESTART_COUNT', '')}/{nth}"
    try:
        store = dist.distributed_c10d._get_default_store()
        answer: bytes = store.compare_set(key, "", mine)
    except (RuntimeError, AttributeError, ValueError):
        return None  # a backend without a store, or with one that cannot do this
    return answer.decode()


def _launch(environ: Mapping[str, str], nth: int) -> str:
    """Without a store: what all ranks of one launch have in common, and mostly no other launch."""
    names = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"]
    names += ["SLURM_JOB_ID", "SLURM_STEP_ID"]
    parts = [environ.get(name, "") for name in names]
    one_node = environ.get("LOCAL_WORLD_SIZE") == environ.get("WORLD_SIZE")
    if one_node and "SLURM_STEP_ID" not in environ:
        parts.append(str(os.getppid()))  # the launcher
    return "|".join([*parts, str(nth)])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def environment() -> dict[str, str]:
    """Versions and host, as a post-mortem wants to know them."""
    torch: Any = sys.modules.get("torch")
    facts = {
        "python": platform.python_version(),
        "torch": str(getattr(torch, "__version__", "not imported")),
        "host": platform.node(),
        "command": sayable(" ".join(_arguments())[:512]),
    }
    where = provenance.device(torch)
    if where is not None:
        facts["device"] = where
    for package in ("transformers", "accelerate", "lightning", "deepspeed", "torchtune"):
        module = sys.modules.get(package)
        if module is not None:
            facts[package] = str(getattr(module, "__version__", "unknown"))
    return facts


def script() -> str:
    """What to call a run without a name: the file that was started."""
    first = next(iter(_arguments()), "")
    return sayable(os.path.basename(first))[:256] or "python"


def _arguments() -> list[str]:
    """``sys.argv``, which is the script's to write over, and which an embedded Python lacks."""
    return [str(argument) for argument in getattr(sys, "argv", None) or []]


def sayable(text: str) -> str:
    """What can go over the wire: an argument may hold bytes that are no text."""
    return text.encode(errors="replace").decode()
