"""Observes clipping by norm and by value, also of functions that the script imported by name.

``clip_grad_norm_`` calls ``clip_grads_with_norm_``, which scripts also call with a norm of their
own. All of these are decorated functions. The observer replaces the body inside, which every name
of the function calls, also those that were bound before the hooks were installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad

from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain, local_part
from gradledger.capture.open_parts import OpenEvent
from gradledger.capture.open_records import OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

COMPILED = "clipping runs inside a compiled function, where it cannot be seen"


class Clipping(Observer):
    """Notes ``clip_norm`` and ``clip_value`` in the window whose parameters are clipped."""

    facts = ("clip_norm", "clip_value")

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows = windows

    def install(self) -> None:
        """Wrap the function that multiplies gradients by the clipping coefficient."""
        self.patch(*_body_of("_clip_grads_with_norm_"), self._wrap_with_norm)
        self.patch(*_body_of("clip_grad_value_"), self._wrap_value)

    def _wrap_with_norm(self, original: Any) -> Any:
        def _clip_grads_with_norm_(
            parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any
        ) -> Any:
            parameters = _as_list(parameters)
            self.run_guarded(self._add_event, "clip_norm", parameters, max_norm, total_norm)
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        return _clip_grads_with_norm_

    def _wrap_value(self, original: Any) -> Any:
        def clip_grad_value_(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> Any:
            parameters = _as_list(parameters)
            self.run_guarded(self._add_event, "clip_value", parameters, clip_value, None)
            return original(parameters, clip_value, *args, **kwargs)

        return clip_grad_value_

    def _add_event(self, op: Any, parameters: list[Any], limit: float, total_norm: Any) -> None:
        clipped = {id(p) for p in parameters}
        readable = isinstance(total_norm, torch.Tensor) and _is_total(total_norm)
        norm = Deferred(total_norm, volatile=True) if readable else None
        for window in self._windows.of_this_thread():
            if any(id(p) in clipped for p in window.probed_parameters):
                event = OpenEvent(op, 0, limit=float(limit), norm=norm)
                event.sample = window.sample()
                event.covers_all = all(id(p) in clipped for p in window.parameters())
                window.add_event(event)

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """State what is missing if a clipping function was compiled: its calls are not observed."""
        if self._compiled:
            step.missing.update(dict.fromkeys((*self.facts, "post_factor"), COMPILED))


def _as_list(parameters: Any) -> list[Any]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _body_of(name: str) -> tuple[Any, str]:
    """Where a decorated function of PyTorch's holds its body; where it is not decorated, its name.

    Raises AttributeError if this PyTorch does not have the function.
    """
    function: Any = getattr(clip_grad, name)
    body = getattr(function, "__wrapped__", None)
    cells = [cell for cell in function.__closure__ or () if cell.cell_contents is body]
    return (cells[0], "cell_contents") if cells else (clip_grad, name)


def _is_total(norm: Any) -> bool:
    """Whether a norm can be read, and is not this rank's part of one."""
    parts = [placement.is_partial() for placement in getattr(norm, "placements", ())]
    return is_plain(local_part(norm)) and not any(parts)
