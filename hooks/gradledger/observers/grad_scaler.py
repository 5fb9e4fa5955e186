"""Observes GradScaler: which backward is scaled, and in which order it is asked to do what.

``get_scale()`` is never called, because it waits for the device: the scale's tensor is copied.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain
from gradledger.capture.open_records import OpenMicroBatch, OpenScaler, OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import Track, Windows

COMPILED = "the GradScaler runs inside a compiled function, where it cannot be seen"


class _OfThread(threading.local):
    """What a thread is doing with its scaler."""

    scaled: tuple[weakref.ref[Any], Deferred] | None = None  # the loss scaled last, and its scale
    stepping: Any = None  # the scaler whose step() runs


class Scaler(Observer):
    """Fills ``scale`` and ``scaler``, notes the scaler's calls, and tells of skipped steps."""

    facts = ("scale", "scaler", "grad_scale", "unscale", "update", "scaler_step")

    def __init__(self, windows: Windows, skipped: Callable[[Any], None]) -> None:
        super().__init__()
        self._windows, self._skipped = windows, skipped
        self._now = _OfThread()
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
            self.safely(self._note_scaled, scaler, scaled)
            return scaled

        return scale

    def _note_scaled(self, scaler: Any, scaled: Any) -> None:
        if not scaler.is_enabled() or not isinstance(scaled, torch.Tensor):
            return
        self._number(scaler)
        if is_plain(scaler._scale):
            # a copy: update() moves the scale in place
            self._now.scaled = weakref.ref(scaled), Deferred(scaler._scale, volatile=True)

    def _wrap_unscale(self, original: Any) -> Any:
        def unscale_(scaler: Any, optimizer: Any) -> Any:
            result = original(scaler, optimizer)
            if self._now.stepping is None and scaler.is_enabled():
                self.safely(self._windows.note, "unscale", optimizer)
            return result

        return unscale_

    def _wrap_step(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            try:
                self._now.stepping = scaler
                steps = self.safely(self._before_step, optimizer)
                result = original(scaler, optimizer, *args, **kwargs)
                self.safely(self._after_step, optimizer, steps)
            finally:
                self._now.stepping = None
            return result

        return step

    def _before_step(self, optimizer: Any) -> int:
        self._windows.note("scaler_step", optimizer)
        return self._windows.track(optimizer).steps

    def _after_step(self, optimizer: Any, steps: int | None) -> None:
        """No optimizer hook fires for a step that is skipped."""
        if self._windows.track(optimizer).steps == steps and self._patches:
            self._skipped(optimizer)

    def _wrap_update(self, original: Any) -> Any:
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if scaler.is_enabled():
                self.safely(self._windows.note, "update")
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
        scaled = self._now.scaled
        if scaled is not None and any(scaled[0]() is root for root in roots):
            micro_batch.scale = scaled[1]

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """Copy the scaler's state; a fused optimizer divides by ``grad_scale`` itself."""
        if self._compiled:
            step.missing.update(dict.fromkeys(self.facts, COMPILED))
        scaler = self._now.stepping
        if scaler is not None and scaler._scale is not None:
            tracker = scaler._growth_tracker
            step.scaler = OpenScaler(
                self._number(scaler),
                Deferred(scaler._scale, volatile=True),
                None if tracker is None else Deferred(tracker, volatile=True),
            )
        scale = getattr(track.optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor):
            step.grad_scale = Deferred(scale, volatile=True)
            found = getattr(track.optimizer, "found_inf", None)
            if isinstance(found, torch.Tensor):
                step.found_inf = Deferred(found, volatile=True)
