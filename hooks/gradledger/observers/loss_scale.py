"""Observes which backward starts from a loss that a GradScaler has scaled."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gradledger.deferred import Deferred
from gradledger.guard import fail_open
from gradledger.ledger import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer, Patch

if TYPE_CHECKING:
    from gradledger.windows import Track


class LossScale(Observer):
    """Fills ``scale`` of every micro-batch, and tells of steps that the scaler skips."""

    facts = ("scale", "grad_scale")

    def __init__(self, skipped: Callable[[Any], None]) -> None:
        self._skipped = skipped
        self._stepped = False
        self._patches: list[Patch] = []
        self._scaled: tuple[weakref.ref[Any], Deferred] | None = None

    def install(self) -> None:
        """Wrap ``GradScaler.scale``."""
        self._patches.append(Patch(torch.amp.GradScaler, "scale", self._wrap))
        self._patches.append(Patch(torch.amp.GradScaler, "step", self._wrap_step))

    def uninstall(self) -> None:
        """Restore it."""
        while self._patches:
            self._patches.pop().undo()

    def _wrap(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            with fail_open("the loss scale observer"):
                if isinstance(scaled, torch.Tensor) and scaler._scale is not None:
                    # a copy: update() moves the scale in place
                    self._scaled = weakref.ref(scaled), Deferred(scaler._scale.detach().clone())
            return scaled

        return scale

    def _wrap_step(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._stepped = False
            result = original(scaler, optimizer, *args, **kwargs)
            with fail_open("the loss scale observer"):
                if not self._stepped:  # no optimizer hook fires for a step that is skipped
                    self._skipped(optimizer)
            return result

        return step

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Is this root the loss that was scaled last?"""
        if self._scaled is not None and any(self._scaled[0]() is root for root in roots):
            micro_batch.scale = self._scaled[1]

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """A fused optimizer divides by ``grad_scale`` itself; the scaler sets it for the call."""
        self._stepped = True
        scale = getattr(track.optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor):
            step.grad_scale = Deferred(scale.detach().clone())
