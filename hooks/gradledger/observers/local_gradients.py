"""Gradients of this rank alone, where DDP hands them to a comm hook before anyone else sees them.

DDP overwrites ``.grad`` with what its comm hook returns, inside backward. Just before that, a
parameter's gradient is this rank's own: what has been accumulated so far, not yet combined.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch.utils.weak import WeakIdKeyDictionary

from gradledger import guard
from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import isolated, never_compile

if TYPE_CHECKING:
    from gradledger.capture.windows import Track

DEFAULT_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
AVERAGING = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")


def own_hook(wrappers: Iterable[Any]) -> bool:
    """Whether a DDP model has a comm hook that is not one of PyTorch's which average.

    Raises AttributeError where DDP does not list its hooks as we know it: no hook is not a guess.
    """
    known = [getattr(sys.modules.get(DEFAULT_HOOKS), name, None) for name in AVERAGING]
    hooks = [hook for ddp in wrappers for hook, _ in ddp._comm_hooks]
    return any(hook not in known for hook in hooks)


class LocalGradients:
    """Copies coordinates of watched parameters each time that their gradient has accumulated."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._handles: Any = WeakIdKeyDictionary()  # by parameter
        self._seen: Any = WeakIdKeyDictionary()

    def watch(self, track: Track, failed: guard.Handler) -> None:
        """From the next backward on."""
        for parameter in track.watched:
            if parameter not in self._handles:
                look = guard.fail_open(f"observer {self._owner}", failed)(self._look)
                hook = parameter.register_post_accumulate_grad_hook(look)
                self._handles[parameter] = hook

    def take(self, track: Track) -> Deferred | None:
        """What the last backward left, in the order of ``Track.sample``; None if not all was seen.

        Forgets it: the next window must show it anew.
        """
        present = [p for p in track.watched if p.grad is not None]
        seen = [self._seen.pop(p) for p in present if p in self._seen]
        return gradient_probe.copy(seen) if len(seen) == len(present) else None

    def release(self) -> None:
        """Leave no hook behind."""
        for handle in list(self._handles.values()):
            handle.remove()
        self._handles.clear()
        self._seen.clear()

    @never_compile
    def _look(self, parameter: Any) -> None:
        with isolated():
            view = gradient_probe.coordinates(parameter.grad)
            if view is not None:
                self._seen[parameter] = view.clone()  # DDP is about to write over it
