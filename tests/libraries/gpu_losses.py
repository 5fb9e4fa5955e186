"""Cross entropies of packages that need a GPU to be imported or to run: their real source, judged.

The packages are in a folder of their own, without what they depend on. Each function is judged in a
new process, because their imports change other packages and read variables of the environment.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from helpers.loops import answer
from helpers.projected import LOOPS, FusedLoss, assert_judged_right, train_projected
from helpers.training import IGNORED, Recording, recording
from libraries.torchvision_import import import_torchvision

SOURCES = Path(sys.prefix) / "sources"
# The variables that select one of Unsloth's functions of a projection.
SELECTED = {
    "fused_linear_ce_v2_default": {},
    "UnslothChunkedCE": {"UNSLOTH_FUSED_LINEAR": "0"},
    "UnslothFusedLoss": {"UNSLOTH_CE_LOSS_TARGET_GB": "1"},
}
_WITHOUT_GPU = {"UNSLOTH_FORCE_CPU": "1", "UNSLOTH_IS_PRESENT": "1", "UNSLOTH_COMPILE_DISABLE": "1"}


def judged(function: str) -> list[str]:
    """Judge it in all loops: the kinds of the terms. Raises what fails there."""
    return _in_new_process(_judge, function)


def verdicts(function: str) -> list[tuple[set[str], str]]:
    """What is found in all loops, and the verdict, where the applied gradient is inexact."""
    return _in_new_process(_verdicts, function)


def _in_new_process(call: Callable[[str], list[Any]], function: str) -> list[Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_prepared, (call, function))


def _prepared(call: Callable[[str], list[Any]], function: str) -> list[Any]:
    sys.path.append(str(SOURCES))
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(_WITHOUT_GPU | SELECTED.get(function, {}))
        os.environ.update(TRITON_INTERPRET="1", UNSLOTH_COMPILE_LOCATION=folder)  # it writes there
        import_torchvision()
        return call(function)


def _judge(function: str) -> list[str]:
    recorded = [assert_judged_right(FUNCTIONS[function], loop) for loop in LOOPS.values()]
    return [each.records()[0].micro_batches[0].terms[0].kind for each in recorded]


def _verdicts(function: str) -> list[tuple[set[str], str]]:
    answers = []
    for loop in LOOPS.values():
        recorded = Recording()
        train_projected(FUNCTIONS[function], loop, recording(recorded))
        found, verdict = answer(recorded)
        answers.append((set(found), verdict))
    return answers


def flash_attn(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """flash-attn, in Triton's interpreter, without the choice of a CUDA device."""
    _without_init("flash_attn", SOURCES / "flash-attn")  # which loads its CUDA extension
    module: Any = importlib.import_module("flash_attn.ops.triton.cross_entropy")
    module.torch.cuda.device = lambda index: contextlib.nullcontext()
    losses, _ = module.cross_entropy_loss(hidden @ head.T, labels, ignore_index=IGNORED)
    return _reduced(losses, labels, reduction)


def megatron(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """Megatron, for a vocabulary on one rank; it has no ignored class, so the loop masks."""
    _tensor_parallel_group()
    module: Any = importlib.import_module("megatron.core.tensor_parallel.cross_entropy")
    losses = module.vocab_parallel_cross_entropy((hidden @ head.T)[None], labels.clamp_min(0)[None])
    return _reduced(losses[0] * (labels != IGNORED), labels, reduction)


def megatron_fused(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """Its fused variant, whose gradient is in bf16."""
    group = _tensor_parallel_group()
    module: Any = importlib.import_module("megatron.core.fusions.fused_cross_entropy")
    losses = module.fused_vocab_parallel_cross_entropy(
        (hidden @ head.T)[None], labels.clamp_min(0)[None], group
    )
    return _reduced(losses[0] * (labels != IGNORED), labels, reduction)


def torchtitan(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """torchtitan, for a vocabulary on one rank; it only adds up."""
    group = _tensor_parallel_group()
    module: Any = importlib.import_module("torchtitan.components.loss")
    total = module._LossParallelCrossEntropy.apply(hidden @ head.T, labels, group, len(head))
    return _reduced(total, labels, reduction)


def unsloth(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """Unsloth, of logits, in Triton's interpreter, without a cast that this does not know."""
    _without_init("unsloth")  # which searches for a GPU
    _without_init("unsloth.kernels")
    module: Any = importlib.import_module("unsloth.kernels.cross_entropy_loss")
    module.triton_cast = lambda number, _: number
    count = None if reduction == "mean" else 1  # what it divides the sum by
    loss: Tensor = module.fast_cross_entropy_loss(
        (hidden @ head.T)[None], labels[None], n_items=count
    )
    return loss


def unsloth_projection(
    hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str
) -> Tensor:
    """Unsloth, of hidden states and a projection."""
    _without_init("unsloth")
    module: Any = importlib.import_module("unsloth_zoo.fused_losses.cross_entropy_loss")
    count = None if reduction == "mean" else 1
    batch = {"hidden_states": hidden[None], "labels": labels[None], "n_items": count}
    loss: Tensor = module.unsloth_fused_ce_loss(
        None, lm_head_weight=head, lm_head_bias=None, shift_labels=False, **batch
    )
    return loss


FUNCTIONS: dict[str, FusedLoss] = {
    "flash_attn": flash_attn,
    "megatron": megatron,
    "megatron_fused": megatron_fused,
    "torchtitan": torchtitan,
    "unsloth": unsloth,
    **dict.fromkeys(SELECTED, unsloth_projection),
}


def _reduced(losses: Tensor, labels: Tensor, reduction: str) -> Tensor:
    total = losses.sum()
    return total if reduction == "sum" else total / (labels != IGNORED).sum()


def _without_init(package: str, folder: Path = SOURCES) -> None:
    """Let the modules of a package be imported without what its ``__init__`` does."""
    if package not in sys.modules:
        module = sys.modules[package] = ModuleType(package)
        module.__path__ = [str(folder.joinpath(*package.split(".")))]
        module.__spec__ = ModuleSpec(package, None, is_package=True)


def _tensor_parallel_group() -> Any:
    """A group of this process alone, also for Megatron."""
    parallel_state: Any = importlib.import_module("megatron.core.parallel_state")
    if not dist.is_initialized():
        store = Path(os.environ["UNSLOTH_COMPILE_LOCATION"], "store")
        dist.init_process_group("gloo", init_method=store.as_uri(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel(1)
    return parallel_state.get_tensor_model_parallel_group()
