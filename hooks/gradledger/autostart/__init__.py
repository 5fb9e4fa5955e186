"""The environment with which ``gradledger run`` starts the hooks in a command and its children.

A folder with a ``sitecustomize`` module goes first on ``PYTHONPATH``. Every Python process that the
command starts imports that module, which waits for ``import torch``. A program that never imports
torch, or that is not Python, is not affected.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

PATH = Path(__file__).parent / "path"
# A folder in which each process creates an empty file for every stage that it reaches, for `check`.
STAGES = "GRADLEDGER_STAGES"
EAGER = "GRADLEDGER_EAGER"  # "1": train without torch.compile
RUN_ID = re.compile(r"[A-Za-z0-9._-]{1,120}")
RUN_ID_FORMAT = "1 to 120 letters, digits, '.', '_' and '-'"

LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
SCRIPTS = (".py", ".sh")


def is_checked() -> bool:
    """Whether this process runs under `gradledger check`, which reads what was not sent."""
    return bool(os.environ.get(STAGES))


def environment(
    base: Mapping[str, str],
    command: list[str],
    *,
    name: str | None = None,
    project: str | None = None,
    url: str | None = None,
) -> dict[str, str]:
    """The environment in which ``command`` runs with the hooks on."""
    options = {"GRADLEDGER_NAME": name, "GRADLEDGER_PROJECT": project, "GRADLEDGER_URL": url}
    env = {**base, **{key: value for key, value in options.items() if value}}
    env.setdefault("GRADLEDGER_RUN", new_run_id())
    env.setdefault("GRADLEDGER_NAME", default_name(command))
    env["PYTHONPATH"] = _prepended(str(PATH), base.get("PYTHONPATH", ""))
    return env


def new_run_id() -> str:
    """A new run id, readable and sortable: 20261121-124500-k3f9."""
    alphabet = "abcdefghijkmnpqrstuvwxyz23456789"
    tail = "".join(secrets.choice(alphabet) for _ in range(4))
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{tail}"


def with_python(command: list[str]) -> list[str]:
    """The command; Python comes before a script that is no program itself, as ``train.py``.

    It is the Python of gradledger, if it has PyTorch: its environment need not be activated.
    """
    script = command[0]
    if not script.endswith(".py") or not os.path.isfile(script) or shutil.which(script):
        return command
    return [sys.executable if find_spec("torch") else "python", *command]


def default_name(command: list[str]) -> str:
    """The name of the run of a command: its script, else its module, else its program."""
    modules = {following for word, following in pairwise(command) if word == "-m"}
    for word in command[1:]:
        if word in modules - LAUNCHERS:
            return word
        if word.endswith(SCRIPTS):
            return Path(word).stem
    return Path(command[0]).stem or "run"


def _prepended(folder: str, path: str) -> str:
    """``path`` with ``folder`` first. An empty ``path`` adds no entry: that would mean ``.``."""
    rest = [entry for entry in path.split(os.pathsep) if entry != folder] if path else []
    return os.pathsep.join([folder, *rest])
