"""Observes collectives: how many each backward ran, and whether gradients were averaged.

A process group numbers its collectives; the difference around a backward is what it ran.
Nothing is added to a group, and no result of a collective is ever kept.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradledger.ledger import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.windows import Track


class Collectives(Observer):
    """Fills ``collectives`` and ``wrapper`` of micro-batches, and how a step was synchronised."""

    facts = ("collectives", "sync", "wrapper", "sync_bytes", "outside", "collectives_after")

    def __init__(self) -> None:
        super().__init__()
        self._before: int | None = None
        self._after_backward: int | None = None
        self._forward: Any = None  # what the wrapper's forward saw since the last backward
        self._ddp: weakref.ref[Any] | None = None
        self._fsdp = False
        self._about: dict[int, dict[str, Any]] = {}  # what is constant, by optimizer

    def install(self) -> None:
        """Notice forwards through a data-parallel wrapper, and what they decide."""
        ddp = sys.modules.get("torch.nn.parallel.distributed")
        if ddp is not None:
            self.patch(ddp.DistributedDataParallel, "__init__", self._wrap_init)
            self.patch(ddp.DistributedDataParallel, "_pre_forward", self._wrap_ddp)
        fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
        if fsdp is not None:
            self.patch(fsdp.FullyShardedDataParallel, "forward", self._wrap_fsdp)

    def _wrap_init(self, original: Any) -> Any:
        def __init__(module: Any, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            with self.safely():
                self._meet(module)  # a script may only ever call module.module

        return __init__

    def _wrap_ddp(self, original: Any) -> Any:
        def _pre_forward(module: Any, *inputs: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                with self.safely():
                    self._saw(module)
            return original(module, *inputs, **kwargs)

        return _pre_forward

    def _meet(self, module: Any) -> None:
        if self._ddp is None or self._ddp() is not module:
            self._ddp = weakref.ref(module)
            self._about.clear()

    def _saw(self, module: Any) -> None:
        self._meet(module)
        if torch.is_grad_enabled():
            self._forward = "sync" if module.require_backward_grad_sync else "no_sync"

    def _wrap_fsdp(self, original: Any) -> Any:
        def forward(module: Any, *inputs: Any, **kwargs: Any) -> Any:
            self._fsdp = True
            return original(module, *inputs, **kwargs)

        return forward

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Read the sequence numbers before backward."""
        self._before = sequence_number()
        if self._ddp is not None:
            micro_batch.wrapper = self._forward or "bypassed"
            self._forward = None

    def backward_ends(self, micro_batch: OpenMicroBatch, touched: list[Track]) -> None:
        """The difference is the number of collectives of this backward."""
        self._after_backward = sequence_number()
        if self._before is not None and self._after_backward is not None:
            micro_batch.collectives = self._after_backward - self._before

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """Say what happened to the gradients over the ranks in this window."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        now = sequence_number()
        if now is not None and self._after_backward is not None:
            step.fields["collectives_after"] = now - self._after_backward
        step.fields.update(self._constant(track))
        step.fields["sync"] = self._sync(step)
        step.combined = step.fields["sync"] != "averaged"

    def _sync(self, step: OpenStep) -> str:
        inside = sum(c.micro_batch.collectives or 0 for c in step.micro_batches)
        ddp = None if self._ddp is None else self._ddp()
        custom = bool(getattr(ddp, "_comm_hooks", None))
        if inside and step.fields.get("wrapper") and not custom:
            return "averaged"
        return "unknown" if inside or step.fields.get("collectives_after") else "none"

    def _constant(self, track: Track) -> dict[str, Any]:
        known = self._about.get(id(track))
        if known is None:
            known = self._about[id(track)] = self._describe(track)
        return known

    def _describe(self, track: Track) -> dict[str, Any]:
        parameters = [p for p in track.parameters() if p.requires_grad]
        if any(hasattr(p, "_local_tensor") for p in parameters):
            return {"wrapper": "fsdp2", "sync_bytes": _bytes(parameters)}
        if self._fsdp:
            return {"wrapper": "fsdp", "sync_bytes": _bytes(parameters)}
        ddp = None if self._ddp is None else self._ddp()
        if ddp is None:
            return {}
        held = {id(p) for p in ddp.parameters()}
        synced = [p for p in parameters if id(p) in held]
        if not synced:
            return {}
        outside = len(parameters) - len(synced)
        return {"wrapper": "ddp", "sync_bytes": _bytes(synced), "outside": outside}


def _bytes(parameters: list[Any]) -> int:
    local = [getattr(p, "_local_tensor", p) for p in parameters]
    return sum(p.numel() * p.element_size() for p in local)


def sequence_number() -> int | None:
    """Collectives that all process groups have run; None outside distributed training."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    groups: Any = dist.distributed_c10d._world.pg_map
    numbers: list[int] = [group._get_sequence_number_for_group() for group in groups]
    return sum(numbers)
