"""Observes collectives: how many each backward ran, and whether gradients were averaged.

A process group numbers its collectives; the difference around a backward is what it ran.
Nothing is added to a group, and no result of a collective is ever kept.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradledger.capture.backwards import Backwards
from gradledger.capture.isolation import is_dtensor, local_part
from gradledger.capture.open_records import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer
from gradledger.observers.local_gradients import LocalGradients, own_hook

if TYPE_CHECKING:
    from gradledger.capture.windows import Track

_world: Any = getattr(dist.distributed_c10d, "_world", None) if dist.is_available() else None

THREADS = "another thread trained meanwhile: whose collectives ran cannot be told apart"
UNCOUNTED = "this version of PyTorch does not number its collectives where they are looked for"

FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


class _OfThread(threading.local):
    """What happened on a thread since its last backward began."""

    after_backward: int | None = None  # collectives that had run when it ended
    forward: Any = None  # what the wrappers' forwards have decided since


class Collectives(Observer):
    """Fills ``collectives`` and ``wrapper`` of micro-batches, and how a step was synchronised."""

    facts = ("collectives", "sync", "wrapper", "sync_bytes", "outside", "collectives_after")

    def __init__(self, backwards: Backwards) -> None:
        super().__init__()
        self._backwards = backwards
        self._now = _OfThread()
        self._wrapped = False  # whether a data-parallel wrapper was ever met
        self._ddp: weakref.WeakSet[Any] = weakref.WeakSet()  # a script may train several
        self._fsdp: weakref.WeakSet[Any] = weakref.WeakSet()  # FSDP1's outermost modules
        self._local = LocalGradients(type(self).__name__)
        self._to_find: dict[str, tuple[str, str, Any]] = {
            FSDP1: ("FullyShardedDataParallel", "forward", self._wrap_fsdp),
            FSDP2: ("FSDPParamGroup", "post_backward", self._wrap_fsdp2),
        }
        self._modules = 0  # how many were imported when FSDP was last looked for
        self._about: dict[int, dict[str, Any]] = {}  # what is constant, by optimizer

    def install(self) -> None:
        """Notice forwards through a data-parallel wrapper, and what they decide."""
        ddp = sys.modules.get("torch.nn.parallel.distributed")
        if ddp is not None:
            self.patch(ddp.DistributedDataParallel, "__init__", self._wrap_init, always=True)
            self.patch(ddp.DistributedDataParallel, "_pre_forward", self._wrap_ddp)
        self._find_fsdp()

    def uninstall(self) -> None:
        """Restore everything that ``install`` changed, and let go of the parameters."""
        super().uninstall()
        self._local.release()

    def rest(self) -> None:
        """Leave no hook on a parameter either."""
        super().rest()
        self._local.release()

    def wake(self, tracks: list[Track]) -> None:
        """Forget what the wrappers decided, and how many collectives there were."""
        super().wake(tracks)
        self._now = _OfThread()

    def _find_fsdp(self) -> None:
        """FSDP is only imported by scripts that use it, after us."""
        self._modules = len(sys.modules)
        for name, (owner, method, wrap) in list(self._to_find.items()):
            module = sys.modules.get(name)
            if hasattr(module, owner):
                del self._to_find[name]
                self.patch(getattr(module, owner), method, wrap)
                self._about.clear()

    def _wrap_init(self, original: Any) -> Any:
        def __init__(module: Any, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self.safely(self._meet, module)  # a script may only ever call module.module

        return __init__

    def _wrap_ddp(self, original: Any) -> Any:
        def _pre_forward(module: Any, *inputs: Any, **kwargs: Any) -> Any:
            self.safely(self._saw, module)
            return original(module, *inputs, **kwargs)

        return _pre_forward

    def _meet(self, module: Any) -> None:
        if module not in self._ddp:
            self._ddp.add(module)
            self._wrapped = True
            self._about.clear()

    def _saw(self, module: Any) -> None:
        self._meet(module)
        if torch.is_grad_enabled() and self._now.forward != "sync":
            self._now.forward = "sync" if module.require_backward_grad_sync else "no_sync"

    def _wrap_fsdp(self, original: Any) -> Any:
        def forward(module: Any, *inputs: Any, **kwargs: Any) -> Any:
            self.safely(self._meet_fsdp, module)
            return original(module, *inputs, **kwargs)

        return forward

    def _meet_fsdp(self, module: Any) -> None:
        if module._is_root is not False and module not in self._fsdp:  # None at first
            self._fsdp.add(module)
            self._wrapped = True
            self._about.clear()

    def _wrap_fsdp2(self, original: Any) -> Any:
        def post_backward(group: Any, *unused: Any) -> Any:
            self.safely(self._reduced, group)
            return original(group, *unused)

        return post_backward

    def _reduced(self, group: Any) -> None:
        """FSDP2 decides here; what it does not reduce it accumulates where ``.grad`` is not."""
        micro_batch = self._backwards.here()
        if micro_batch is None:
            return
        if micro_batch.wrapper != "sync":
            micro_batch.wrapper = "sync" if group.reduce_grads else "no_sync"
        if not group.reduce_grads:
            micro_batch.unseen |= {id(p.sharded_param) for p in group.fsdp_params}

    @staticmethod
    def _accumulates(module: Any, micro_batch: OpenMicroBatch) -> None:
        """FSDP1 decides when backward runs; until it reduces, ``.grad`` may not show a thing."""
        if micro_batch.wrapper != "sync":
            micro_batch.wrapper = "sync" if module._sync_gradients else "no_sync"
        if not module._sync_gradients:
            micro_batch.unseen |= {id(p) for p in module.parameters()}

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Read the sequence numbers before backward."""
        if len(sys.modules) != self._modules:
            self._find_fsdp()
        micro_batch.collectives_before = sequence_number()
        if self._wrapped:
            self._decided(micro_batch)

    def _decided(self, micro_batch: OpenMicroBatch) -> None:
        """What the wrappers have decided for this backward."""
        if self._ddp:
            micro_batch.wrapper = self._now.forward or "bypassed"
            self._now.forward = None
        for module in self._fsdp:
            self._accumulates(module, micro_batch)

    def backward_ends(self, micro_batch: OpenMicroBatch, touched: list[Track]) -> None:
        """The difference is the number of collectives of this backward."""
        before, after = micro_batch.collectives_before, sequence_number()
        self._now.after_backward = after
        if before is not None and after is not None and micro_batch.alone:
            micro_batch.collectives = after - before
        if self._ddp and own_hook(self._ddp):
            for track in touched:
                self._local.watch(track, self.failed)

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """Say what happened to the gradients over the ranks in this window."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        if self._backwards.overlapped or _world is None:
            reason = THREADS if self._backwards.overlapped else UNCOUNTED
            step.missing.update(dict.fromkeys(self.facts, reason))
            return
        now, before = sequence_number(), self._now.after_backward
        if now is not None and before is not None:
            step.fields["collectives_after"] = now - before
        step.fields.update(self._constant(track))
        if any(_is_hybrid(module) for module in self._fsdp):
            step.missing["norm"] = "FSDP's hybrid sharding: each part is held more than once"
        step.fields["sync"] = self._sync(step)
        step.combined = step.fields["sync"] != "averaged"
        local = self._local.take(track)
        if local is not None and step.micro_batches[-1:]:
            step.micro_batches[-1].after = local  # before the comm hook, where no one else looked

    def _sync(self, step: OpenStep) -> str:
        inside = sum(c.micro_batch.collectives or 0 for c in step.micro_batches)
        if inside and step.fields.get("wrapper") and not own_hook(self._ddp):
            return "averaged"
        return "unknown" if inside or step.fields.get("collectives_after") else "none"

    def _constant(self, track: Track) -> dict[str, Any]:
        known = self._about.get(id(track))
        if known is None:
            known = self._about[id(track)] = self._describe(track)
        return known

    def _describe(self, track: Track) -> dict[str, Any]:
        parameters = [p for p in track.parameters() if p.requires_grad]
        if any(map(is_dtensor, parameters)):
            return {"wrapper": "fsdp2", "sync_bytes": _bytes(parameters)}
        if self._fsdp:
            parts = any(module.sharding_strategy.name != "NO_SHARD" for module in self._fsdp)
            return {"wrapper": "fsdp", "sync_bytes": _bytes(parameters), "sharded": parts}
        held = {id(p) for ddp in self._ddp for p in ddp.parameters()}
        synced = [p for p in parameters if id(p) in held]
        if not synced:
            return {}
        outside = len(parameters) - len(synced)
        return {"wrapper": "ddp", "sync_bytes": _bytes(synced), "outside": outside}


def _is_hybrid(module: Any) -> bool:
    return "HYBRID" in str(module.sharding_strategy)


def _bytes(parameters: list[Any]) -> int:
    return sum(p.numel() * p.element_size() for p in map(local_part, parameters))


def sequence_number() -> int | None:
    """Collectives that all process groups have run; None outside distributed training."""
    groups: Any = _world.pg_map if _world is not None else ()
    if not groups:
        return None
    numbers: list[int] = [group._get_sequence_number_for_group() for group in groups]
    return sum(numbers)
