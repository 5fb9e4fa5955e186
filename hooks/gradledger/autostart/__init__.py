"""How `gradledger run` reaches a command and all its children: through their environment.

A folder that holds nothing but a ``sitecustomize`` goes first on ``PYTHONPATH``. Every Python that
the command starts imports it, and it waits there for ``import torch``. A program that never
imports torch, or that is not Python, pays and sees nothing.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

PATH = Path(__file__).parent / "path"
SEEN = "GRADLEDGER_SEEN"  # a folder in which processes note how far they came, for `check`

LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
SCRIPTS = (".py", ".sh")


def environment(
    base: Mapping[str, str],
    command: list[str],
    *,
    name: str | None = None,
    project: str | None = None,
    url: str | None = None,
) -> dict[str, str]:
    """The environment in which ``command`` runs with the hooks on."""
    said = {"GRADLEDGER_NAME": name, "GRADLEDGER_PROJECT": project, "GRADLEDGER_URL": url}
    env = {**base, **{key: value for key, value in said.items() if value}}
    env.setdefault("GRADLEDGER_RUN", new_run())
    env.setdefault("GRADLEDGER_NAME", name_of(command))
    env["PYTHONPATH"] = _first(str(PATH), base.get("PYTHONPATH", ""))
    return env


def new_run() -> str:
    """A fresh run id, readable and sortable: 20261121-124500-k3f9."""
    alphabet = "abcdefghijkmnpqrstuvwxyz23456789"
    tail = "".join(secrets.choice(alphabet) for _ in range(4))
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{tail}"


def name_of(command: list[str]) -> str:
    """What a person would call this command: its script, else its module, else its program."""
    modules = {after for word, after in pairwise(command) if word == "-m"}
    for word in command[1:]:
        if word in modules - LAUNCHERS:
            return word
        if word.endswith(SCRIPTS):
            return Path(word).stem
    return Path(command[0]).stem or "run"


def _first(folder: str, path: str) -> str:
    """``path`` with ``folder`` in front; an empty entry would mean the current folder."""
    rest = [entry for entry in path.split(os.pathsep) if entry != folder] if path else []
    return os.pathsep.join([folder, *rest])
