"""Observes GradScaler: which backward is scaled, and in which order it is asked to do what.

``get_scale()`` is never called, because it waits for the device: the scale's tensor is copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gradledger.deferred import Deferred
from gradledger.ledger import OpenMicroBatch, OpenScaler, OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.windows import Track, Windows


class Scaler(Observer):
    """Fills ``scale`` and ``scaler``, notes the scaler's calls, and tells of skipped steps."""

    facts = ("scale", "scaler", "grad_scale", "unscale", "update", "scaler_step")

    def __init__(self, windows: Windows, skipped: Callable[[Any], None]) -> None:
        super().__init__()
        self._windows, self._skipped = windows, skipped
        self._scaled: tuple[weakref.ref[Any], Deferred] | None = None
        self._stepping: Any = None  # the scaler whose step() runs
        self._ordinals: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._count = 0

    def install(self) -> None:
        """Wrap the methods of ``GradScaler``; subclasses that call them are seen through it."""
        owner = torch.amp.GradScaler
        self.patch(owner, "scale", self._wrap_scale)
        self.patch(owner, "unscale_", self._wrap_unscale)
        self.patch(owner, "step", self._wrap_step, always=True)  # skipped steps are counted
        self.patch(owner, "update", self._wrap_update)

    def _wrap_scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            with self.safely():
                if scaler.is_enabled() and isinstance(scaled, torch.Tensor):
                    self._number(scaler)
                    # a copy: update() moves the scale in place
                    self._scaled = weakref.ref(scaled), Deferred(scaler._scale, volatile=True)
            return scaled

        return scale

    def _wrap_unscale(self, original: Any) -> Any:
        def unscale_(scaler: Any, optimizer: Any) -> Any:
            result = original(scaler, optimizer)
            if self._stepping is None and scaler.is_enabled():
                with self.safely():
                    self._windows.note("unscale", optimizer)
            return result

        return unscale_

    def _wrap_step(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            self._stepping = scaler
            steps = None
            with self.safely():
                steps = self._windows.track(optimizer).steps
                self._windows.note("scaler_step", optimizer)
            try:
                result = original(scaler, optimizer, *args, **kwargs)
                with self.safely():
                    # no optimizer hook fires for a step that is skipped
                    if self._windows.track(optimizer).steps == steps and self._patches:
                        self._skipped(optimizer)
            finally:
                self._stepping = None
            return result

        return step

    def _wrap_update(self, original: Any) -> Any:
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if scaler.is_enabled():
                with self.safely():
                    self._windows.note("update")
            return result

        return update

    def _number(self, scaler: Any) -> int:
        known = self._ordinals.get(scaler)
        if known is None:
            self._count += 1
            known = self._ordinals[scaler] = self._count
            if self._count > 1:
                self._windows.note("new_scaler")
        return known

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Is this root the loss that was scaled last?"""
        if self._scaled is not None and any(self._scaled[0]() is root for root in roots):
            micro_batch.scale = self._scaled[1]

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """Copy the scaler's state; a fused optimizer divides by ``grad_scale`` itself."""
        if self._stepping is not None and self._stepping._scale is not None:
            tracker = self._stepping._growth_tracker
            step.scaler = OpenScaler(
                self._number(self._stepping),
                Deferred(self._stepping._scale, volatile=True),
                None if tracker is None else Deferred(tracker, volatile=True),
            )
        scale = getattr(track.optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor):
            step.grad_scale = Deferred(scale, volatile=True)
            found = getattr(track.optimizer, "found_inf", None)
            if isinstance(found, torch.Tensor):
                step.found_inf = Deferred(found, volatile=True)
