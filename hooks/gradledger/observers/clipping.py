"""Observes clipping by norm, also when the function was imported by name.

PyTorch 2.6 and later clip in ``_clip_grads_with_norm_``; older ones in ``clip_grad_norm_`` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad

from gradledger.deferred import Deferred
from gradledger.guard import fail_open
from gradledger.ledger import OpenClip
from gradledger.observers.base import Observer, Patch

if TYPE_CHECKING:
    from gradledger.windows import Windows


class Clipping(Observer):
    """Fills ``clips`` of the window whose parameters were clipped."""

    facts = ("clips",)

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Wrap the one place where gradients are multiplied by the clipping coefficient."""
        if hasattr(clip_grad, "_clip_grads_with_norm_"):
            self._patches.append(Patch(clip_grad, "_clip_grads_with_norm_", self._wrap))
        else:
            self._patches.append(Patch(clip_grad, "clip_grad_norm_", self._wrap_whole))
            self._patches.append(Patch(torch.nn.utils, "clip_grad_norm_", self._wrap_whole))

    def uninstall(self) -> None:
        """Restore PyTorch's functions."""
        while self._patches:
            self._patches.pop().undo()

    def _wrap(self, original: Any) -> Any:
        def _clip_grads_with_norm_(
            parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any
        ) -> Any:
            parameters = _as_list(parameters)
            with fail_open("the clipping observer"):
                self._note(parameters, max_norm, total_norm)
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        return _clip_grads_with_norm_

    def _wrap_whole(self, original: Any) -> Any:
        def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            parameters = _as_list(parameters)
            total_norm = original(parameters, max_norm, *args, **kwargs)
            with fail_open("the clipping observer"):
                self._note(parameters, max_norm, total_norm)
            return total_norm

        return clip_grad_norm_

    def _note(self, parameters: list[Any], max_norm: float, total_norm: Any) -> None:
        norm = getattr(total_norm, "_local_tensor", total_norm)
        clipped = {id(p) for p in parameters}
        for track in self._windows:
            if any(id(p) in clipped for p in track.watched):
                whole = all(id(p) in clipped for p in track.parameters())
                after = len(track.micro_batches)
                track.clips.append(OpenClip(float(max_norm), Deferred(norm), after, whole))


def _as_list(parameters: Any) -> list[Any]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
