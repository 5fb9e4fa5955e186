"""What else a witness keeps while a script runs: all-reduces, loss scales, and the data's order.

DDP reduces in C++, where only a communication hook sees it; the one used here is PyTorch's own,
which gives the same bits as none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

GradScaler = torch.amp.GradScaler


@dataclass
class Tape:
    """Numbers in the order in which they happened."""

    wrappers: int = 0  # DDP modules that were made
    all_reduces: list[int] = field(default_factory=lambda: [0])  # by optimizer step
    scales: list[float] = field(default_factory=list)  # that a loss was multiplied by
    updates: int = 0  # calls of GradScaler.update()
    targets: list[int] = field(default_factory=list)  # a hash of each loss's targets

    def next_step(self, *_: Any) -> None:
        """What follows belongs to the next optimizer step."""
        self.all_reduces.append(0)


@contextmanager
def recording() -> Iterator[Tape]:
    """Keep a tape for the length of a block."""
    tape = Tape()
    handle = register_optimizer_step_pre_hook(tape.next_step)
    with (
        patch.object(DistributedDataParallel, "__init__", _counted(tape)),
        patch.object(GradScaler, "scale", _scaled(tape, GradScaler.scale)),
        patch.object(GradScaler, "update", _updated(tape, GradScaler.update)),
        patch.object(F, "cross_entropy", _hashed(tape, F.cross_entropy)),
    ):
        yield tape
    handle.remove()


def _counted(tape: Tape) -> Callable[..., None]:
    original: Any = DistributedDataParallel.__init__

    def __init__(module: Any, *args: Any, **kwargs: Any) -> None:
        original(module, *args, **kwargs)
        tape.wrappers += 1
        # DDP takes one hook: at its first forward, the script has had time to register its own
        module.register_forward_pre_hook(_observe)

    def _observe(module: Any, inputs: Any) -> None:
        if not module._comm_hooks:
            module.register_comm_hook(module.process_group, reduce)

    def reduce(group: Any, bucket: Any) -> Any:
        tape.all_reduces[-1] += bucket.is_last()
        return allreduce_hook(group, bucket)

    reduce.__annotations__ = {}  # PyTorch compares them with types
    return __init__


def _scaled(tape: Tape, original: Any) -> Callable[..., Any]:
    def scale(scaler: Any, outputs: Any) -> Any:
        tape.scales.append(scaler.get_scale())
        return original(scaler, outputs)

    return scale


def _updated(tape: Tape, original: Any) -> Callable[..., None]:
    def update(scaler: Any, *args: Any, **kwargs: Any) -> None:
        tape.updates += 1
        original(scaler, *args, **kwargs)

    return update


def _hashed(tape: Tape, original: Any) -> Callable[..., Any]:
    def cross_entropy(inputs: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        tape.targets.append(hash(tuple(target.flatten().tolist())))
        return original(inputs, target, *args, **kwargs)

    return cross_entropy
