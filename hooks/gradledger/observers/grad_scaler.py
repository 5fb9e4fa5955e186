"""Observes GradScaler: which backward is scaled, and the order of the calls of its methods.

The observer copies the tensor of the scale. It never calls ``get_scale()``, which waits for the
device.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain
from gradledger.capture.open_parts import OpenScaler
from gradledger.capture.open_records import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer
from gradledger.records import Op

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

COMPILED = "the GradScaler runs inside a compiled function, where it cannot be seen"


class _ThreadScaling(threading.local):
    """State of one thread."""

    # the last scaled loss, its scale, and the number of the scaler
    scaled: tuple[weakref.ref[Any], Deferred, int] | None = None
    stepping: Any = None  # the scaler whose step() runs


class GradScalerCalls(Observer):
    """Fills ``scale`` and ``scaler``, notes the scaler's calls, and reports skipped steps."""

    facts = ("scale", "scaler", "grad_scale", "unscale", "update", "scaler_step")

    def __init__(self, windows: OpenWindows, close_skipped: Callable[[Any], None]) -> None:
        super().__init__()
        self._windows, self._close_skipped = windows, close_skipped
        self._thread = _ThreadScaling()
        self._ordinals: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._count = 0
        self._loaded: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        """Wrap the methods of ``GradScaler``, which subclasses call, too."""
        owner = torch.amp.GradScaler
        self.patch(owner, "scale", self._wrap_scale)
        self.patch(owner, "unscale_", self._wrap_unscale)
        self.patch(owner, "step", self._wrap_step, always=True)  # to count the steps that it skips
        self.patch(owner, "update", self._wrap_update)
        self.patch(owner, "load_state_dict", self._wrap_load, always=True)

    def _wrap_scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            self.run_guarded(self._note_scaled, scaler, scaled)
            return scaled

        return scale

    def _note_scaled(self, scaler: Any, scaled: Any) -> None:
        if not scaler.is_enabled() or not isinstance(scaled, torch.Tensor):
            return
        ordinal = self._ordinal_of(scaler)
        if is_plain(scaler._scale):
            # volatile: update() changes the scale in place
            scale = Deferred(scaler._scale, volatile=True)
            self._thread.scaled = weakref.ref(scaled), scale, ordinal

    def _wrap_unscale(self, original: Any) -> Any:
        def unscale_(scaler: Any, optimizer: Any) -> Any:
            result = original(scaler, optimizer)
            if self._thread.stepping is None and scaler.is_enabled():
                self.run_guarded(self._add_event, "unscale", scaler, optimizer)
            return result

        return unscale_

    def _wrap_step(self, original: Any) -> Any:
        def step(scaler: Any, /, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            try:
                self._thread.stepping = scaler
                steps = self.run_guarded(self._before_step, scaler, optimizer)
                result = original(scaler, optimizer, *args, **kwargs)
                self.run_guarded(self._after_step, optimizer, steps)
            finally:
                self._thread.stepping = None
            return result

        return step

    def _add_event(self, op: Op, scaler: Any, optimizer: Any = None) -> None:
        self._windows.add_event(op, optimizer, self._ordinal_of(scaler))

    def _before_step(self, scaler: Any, optimizer: Any) -> int:
        self._add_event("scaler_step", scaler, optimizer)
        return self._windows.window_of(optimizer).steps

    def _after_step(self, optimizer: Any, steps: int | None) -> None:
        """Close the window if the scaler skipped the step: then no optimizer hook ran."""
        if self._windows.window_of(optimizer).steps == steps and self._patches:
            self._close_skipped(optimizer)

    def _wrap_update(self, original: Any) -> Any:
        def update(scaler: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if scaler.is_enabled():
                self.run_guarded(self._add_event, "update", scaler)
            return result

        return update

    def _wrap_load(self, original: Any) -> Any:
        def load_state_dict(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            self.run_guarded(self._loaded.add, scaler)
            return result

        return load_state_dict

    def _ordinal_of(self, scaler: Any) -> int:
        """1, 2, ... in the order of first use; a second scaler is an event."""
        ordinal = self._ordinals.get(scaler)
        if ordinal is None:
            self._count += 1
            ordinal = self._ordinals[scaler] = self._count
            if self._count > 1:
                self._windows.add_event("new_scaler")
        return ordinal

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Attach the scale if a root is the loss that was scaled last."""
        scaled = self._thread.scaled
        if scaled is not None and any(scaled[0]() is root for root in roots):
            _, micro_batch.scale, micro_batch.scaler = scaled

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Copy the state of the scaler. A fused optimizer divides by ``grad_scale`` itself."""
        if self._compiled:
            step.missing.update(dict.fromkeys(self.facts, COMPILED))
        scaler = self._thread.stepping
        if scaler is not None and scaler._scale is not None:
            tracker = scaler._growth_tracker
            step.scaler = OpenScaler(
                self._ordinal_of(scaler),
                Deferred(scaler._scale, volatile=True),
                None if tracker is None else Deferred(tracker, volatile=True),
                scaler in self._loaded,
            )
        scale = getattr(window.optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor):
            step.grad_scale = Deferred(scale, volatile=True)
            found_inf = getattr(window.optimizer, "found_inf", None)
            if isinstance(found_inf, torch.Tensor):
                step.found_inf = Deferred(found_inf, volatile=True)
