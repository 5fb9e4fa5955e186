"""Observes collectives: how many each backward ran, and whether gradients were averaged.

The process group numbers its collectives; the difference around a backward is what it ran.
Nothing is added to the group, and no result of a collective is ever kept.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from gradledger.ledger import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer, Patch

if TYPE_CHECKING:
    from gradledger.windows import Track


class Collectives(Observer):
    """Fills ``collectives`` of every micro-batch and ``sync`` of every step."""

    facts = ("collectives", "sync")

    def __init__(self) -> None:
        self._before: int | None = None
        self._after_backward: int | None = None
        self._wrapped = False
        self._custom_hook = False
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Notice that a DDP wrapper is in use, by its forward."""
        parallel = sys.modules.get("torch.nn.parallel.distributed")
        if parallel is not None:
            owner = parallel.DistributedDataParallel
            self._patches.append(Patch(owner, "_pre_forward", self._wrap_forward))

    def uninstall(self) -> None:
        """Restore DDP's forward."""
        while self._patches:
            self._patches.pop().undo()

    def _wrap_forward(self, original: Any) -> Any:
        def _pre_forward(module: Any, *inputs: Any, **kwargs: Any) -> Any:
            self._wrapped = True
            self._custom_hook = bool(getattr(module, "_comm_hooks", None))
            return original(module, *inputs, **kwargs)

        return _pre_forward

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Read the sequence number before backward."""
        self._before = sequence_number()

    def backward_ends(self, micro_batch: OpenMicroBatch, touched: list[Track]) -> None:
        """The difference is the number of collectives of this backward."""
        self._after_backward = sequence_number()
        if self._before is not None and self._after_backward is not None:
            micro_batch.collectives = self._after_backward - self._before

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """Say what happened to the gradients over the ranks in this window."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        inside = sum(c.micro_batch.collectives or 0 for c in step.micro_batches)
        sharded = any(hasattr(p, "_local_tensor") for p in track.watched)
        if inside and (self._wrapped or sharded) and not self._custom_hook:
            step.sync = "averaged"
        elif inside or sequence_number() != self._after_backward:
            step.sync = "unknown"


def sequence_number() -> int | None:
    """Collectives that the default process group has run; None outside distributed training."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    world: Any = dist.group.WORLD
    number: int = world._get_sequence_number_for_group()
    return number
