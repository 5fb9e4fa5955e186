"""The git commit and the device of a run, from files and from the state of torch."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The git commit of the script's folder; None if unknown."""
    try:
        git = git_of_script()[1]
        return None if git is None else head_of(git)
    except (OSError, TypeError, ValueError):
        return None


def git_of_script() -> tuple[Path | None, Path | None]:
    """The work tree that contains the script, and its git folder."""
    script = Path(next(iter(getattr(sys, "argv", None) or []), None) or ".")
    folder = (script.parent if script.is_file() else Path()).resolve()
    return repository(folder), git_folder(folder)


def repository(folder: Path) -> Path | None:
    """The folder with ``.git`` that contains a folder; None outside of a work tree."""
    return next((p for p in (folder, *folder.parents) if (p / ".git").exists()), None)


def git_folder(folder: Path) -> Path | None:
    """The git folder of the work tree that contains a folder."""
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        if git.is_dir():
            return git
        if git.is_file():  # in a work tree or a submodule, a file with the path of the folder
            return parent / git.read_text().removeprefix("gitdir:").strip()
    return None


def common_folder(git: Path) -> Path:
    """The git folder of the repository; that of a work tree holds only what differs there."""
    commondir = git / "commondir"
    return git / commondir.read_text().strip() if commondir.is_file() else git


def head_of(git: Path) -> str | None:
    """The commit that is checked out."""
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head[:64] or None
    name = head.removeprefix("ref:").strip()
    common = common_folder(git)
    for folder in (git, common):
        if (folder / name).is_file():
            return (folder / name).read_text().strip()[:64]
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    commits = (line.split()[0] for line in lines if line.endswith(f" {name}"))
    return next(commits, None)


def device(torch: Any) -> str | None:
    """The device of the training: the name of the GPU, ``cpu``, or None if unclear."""
    if torch is None or not hasattr(torch, "cuda"):
        return None
    if torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    other_accelerator = torch.backends.mps.is_available() or torch.xpu.is_initialized()
    return None if other_accelerator else "cpu"
