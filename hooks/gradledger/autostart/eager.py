"""Trains without ``torch.compile`` under ``gradledger check``: a compiled loss is out of sight."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from gradledger import guard
from gradledger.autostart import EAGER
from gradledger.autostart.path.gradledger_autostart import reach_stage


def force_if_asked() -> None:
    """Run what is compiled as if it were not, unless the script itself sets another stance.

    ``torch.compile`` still returns what it always returns. A call is recorded as a stage, which
    the report of the check names.
    """
    if os.environ.get(EAGER) == "1":
        with guard.fail_open("training without torch.compile"):
            _force()


def _force() -> None:
    torch.compiler.set_stance("force_eager")
    original = torch.compile

    @functools.wraps(original)
    def compile_eagerly(*args: Any, **kwargs: Any) -> Any:
        reach_stage("compile")
        return original(*args, **kwargs)

    torch.compile = compile_eagerly
