"""The identity of this process: its run, and its rank in that run."""

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
    """Rank and world size: from torch.distributed if initialised, else from the environment."""
    dist = _initialised()
    if dist is not None:
        return dist.get_rank(), dist.get_world_size()
    try:
        rank, world = int(environ.get("RANK", 0)), int(environ.get("WORLD_SIZE", 1))
    except ValueError:
        return 0, 1
    return (rank, world) if 0 <= rank < world else (0, 1)


def run_id(base: str | None, environ: Mapping[str, str], world_size: int, ordinal: int = 1) -> str:
    """The id of a run: equal on all ranks of one launch, different for every launch.

    All processes that one command starts share ``base``. They may run several trainings in
    sequence, so a suffix distinguishes these. ``ordinal`` counts the runs of this process.
    """
    base = base or time.strftime("%Y%m%d-%H%M%S")
    proposal = f"{base}-{secrets.token_hex(3)}"
    if world_size == 1:
        return proposal
    return (
        _shared_run_id(environ, proposal, ordinal) or f"{base}-{_digest(_launch(environ, ordinal))}"
    )


def _initialised() -> Any:
    """``torch.distributed`` if the script has initialised it."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def _shared_run_id(environ: Mapping[str, str], proposal: str, ordinal: int) -> str | None:
    """The id that the first rank proposed, from the key-value store of the process group.

    This is not a collective: each rank sends one request and waits for no other rank. A store
    belongs to exactly one launch, for every launcher and any number of nodes, and it was reachable
    when the process group was built.
    """
    dist = _initialised()
    if dist is None:
        return None
    # torchrun's store outlives a restart, and it counts none when a node joins or leaves
    attempt = f"{environ.get('TORCHELASTIC_RESTART_COUNT', '')}/{dist.get_world_size()}"
    key = f"gradledger/{attempt}/{ordinal}"
    try:
        store = dist.distributed_c10d._get_default_store()
        stored: bytes = store.compare_set(key, "", proposal)
    except (RuntimeError, AttributeError, ValueError):
        return None  # a backend without a store, or a store without compare_set
    return stored.decode()


def _launch(environ: Mapping[str, str], ordinal: int) -> str:
    """Without a store: values that all ranks of a launch share and other launches rarely have."""
    names = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"]
    names += ["SLURM_JOB_ID", "SLURM_STEP_ID"]
    parts = [environ.get(name, "") for name in names]
    one_node = environ.get("LOCAL_WORLD_SIZE") == environ.get("WORLD_SIZE")
    if one_node and "SLURM_STEP_ID" not in environ:
        parts.append(str(os.getppid()))  # the launcher's process
    return "|".join([*parts, str(ordinal)])


def _digest(text: str, length: int = 6) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:length]


def environment(ordinal: int = 1) -> dict[str, str]:
    """Versions, host, device, command and launchers, for post-mortem reports."""
    torch: Any = sys.modules.get("torch")
    facts = {
        "python": platform.python_version(),
        "torch": str(getattr(torch, "__version__", "not imported")),
        "host": platform.node(),
        "command": replace_surrogates(" ".join(_arguments())[:512]),
    }
    device = provenance.device(torch)
    if device is not None:
        facts["device"] = device
    for package in ("transformers", "accelerate", "lightning", "deepspeed", "torchtune", "trl"):
        module = sys.modules.get(package)
        if module is not None:
            facts[package] = str(getattr(module, "__version__", "unknown"))
    launched = launchers(os.environ)
    if launched and ordinal > 1:
        launched["training of the process"] = str(ordinal)
    return facts | launched


def launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """What launchers state of the job, by which the service links its attempts."""
    restarts, job = map(environ.get, ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"))
    facts = {"torchrun restarts": restarts, "torchrun launch": _torchrun_launch(environ)}
    if job != "none":  # torchrun's default
        facts["torchrun job"] = job
    if not restarts:
        facts.clear()
    slurm = environ.get("SLURM_JOB_ID")
    if slurm:
        facts["SLURM job"] = "@".join(filter(None, (slurm, environ.get("SLURM_CLUSTER_NAME"))))
        facts["SLURM restarts"] = environ.get("SLURM_RESTART_COUNT") or "0"
    return {name: replace_surrogates(value[:128]) for name, value in facts.items() if value}


def _torchrun_launch(environ: Mapping[str, str]) -> str | None:
    """Equal for all restarts of one torchrun on this node, and for no other torchrun.

    Programs that a worker starts inherit it, and a process may launch several times in one folder.
    Its workers write their errors to ``<temporary folder>/<job>_<random>/attempt_<n>/<rank>/``.
    """
    folder, attempt, _ = environ.get("TORCHELASTIC_ERROR_FILE", "").rpartition("attempt_")
    return _digest(f"{platform.node()}|{folder}", 12) if attempt else None


def script() -> str:
    """The file name of the script: the default name of a run."""
    first = next(iter(_arguments()), "")
    return replace_surrogates(os.path.basename(first))[:256] or "python"


def _arguments() -> list[str]:
    """``sys.argv``, which a script may overwrite and an embedded Python may lack."""
    return [str(argument) for argument in getattr(sys, "argv", None) or []]


def replace_surrogates(text: str) -> str:
    """The text with undecodable bytes (surrogates) replaced, so that UTF-8 can encode it."""
    return text.encode(errors="replace").decode()
