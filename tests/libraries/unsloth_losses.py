"""Unsloth's cross entropies of a projection, judged in a process of their own.

The import of ``unsloth_zoo`` changes transformers and trl, and needs variables that are set before.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from helpers.projected import LOOPS, assert_judged_right

# The variables that select a function.
FUNCTIONS = {
    "fused_linear_ce_v2_default": {},
    "UnslothChunkedCE": {"UNSLOTH_FUSED_LINEAR": "0"},
    "UnslothFusedLoss": {"UNSLOTH_CE_LOSS_TARGET_GB": "1"},
}
_WITHOUT_GPU = {"UNSLOTH_FORCE_CPU": "1", "UNSLOTH_IS_PRESENT": "1", "UNSLOTH_COMPILE_DISABLE": "1"}


def judged(function: str) -> list[str]:
    """Judge it in all loops, in a new process: the kinds of the terms. Raises what fails there."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_judge, (function,))


def _judge(function: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(_WITHOUT_GPU | FUNCTIONS[function])
        os.environ["UNSLOTH_COMPILE_LOCATION"] = folder  # where it writes when it is imported
        return _judge_all()


def _judge_all() -> list[str]:
    package = sys.modules["unsloth"] = ModuleType("unsloth")  # which it only searches for
    package.__spec__ = ModuleSpec("unsloth", None)
    recorded = [assert_judged_right(_fused, loop) for loop in LOOPS.values()]
    return [each.records()[0].micro_batches[0].terms[0].kind for each in recorded]


def _fused(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    from libraries.torchvision_import import import_torchvision  # noqa: PLC0415

    import_torchvision()
    from unsloth_zoo.fused_losses import cross_entropy_loss  # type: ignore[import-not-found] # noqa: PLC0415 # fmt: skip

    of: Any = cross_entropy_loss.unsloth_fused_ce_loss
    count = None if reduction == "mean" else 1  # what it divides the sum by
    batch = {"hidden_states": hidden[None], "labels": labels[None], "n_items": count}
    loss: Tensor = of(None, lm_head_weight=head, lm_head_bias=None, shift_labels=False, **batch)
    return loss
