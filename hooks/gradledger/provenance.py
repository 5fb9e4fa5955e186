"""Of which code and on which device a run is: read from files and from what torch knows already."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The git commit that the script's folder is at; None where that is not known.

    Whether files were changed since, only git could tell: no process is started for that.
    """
    try:
        script = Path(next(iter(getattr(sys, "argv", None) or []), None) or ".")
        begin = script.parent if script.is_file() else Path()
        git = _git_folder(begin.resolve())
        return None if git is None else _head(git)
    except (OSError, TypeError, ValueError):
        return None


def _git_folder(folder: Path) -> Path | None:
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_dir():
            return git
        if git.is_file():  # a work tree or a submodule says where it lies
            return place / git.read_text().removeprefix("gitdir:").strip()
    return None


def _head(git: Path) -> str | None:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head[:64] or None
    name = head.removeprefix("ref:").strip()
    common = git / "commondir"
    home = git / common.read_text().strip() if common.is_file() else git
    for place in (git, home):
        if (place / name).is_file():
            return (place / name).read_text().strip()[:64]
    packed = home / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    found = (line.split()[0] for line in lines if line.endswith(f" {name}"))
    return next(found, None)


def device(torch: Any) -> str | None:
    """What it trains on: the GPU's name, ``cpu``, or None where that is not clear."""
    if torch is None or not hasattr(torch, "cuda"):
        return None
    if torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    other = torch.backends.mps.is_available() or torch.xpu.is_initialized()
    return None if other else "cpu"
