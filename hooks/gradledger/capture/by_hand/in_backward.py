"""Updates that hooks make inside a backward, parameter by parameter, as LOMO does.

A hook applies the gradient of a parameter as soon as it is complete, and frees it: when the
backward ends there are no gradients, and the parameters have changed. (If the hooks step
optimizers of PyTorch, each step is one.) Where a window has neither had a gradient nor made a
step, or no optimizer holds its parameters, these are therefore compared before and after a
backward. From the first such update on, hooks of the probed parameters copy what reaches them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gradledger import guard
from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred, joined
from gradledger.capture.by_hand.state import State, update_of
from gradledger.capture.isolation import capturing, isolated

if TYPE_CHECKING:
    from gradledger.capture.open_parts import OpenUpdate
    from gradledger.capture.open_records import OpenMicroBatch
    from gradledger.capture.windows import OpenWindows, OptimizerWindow


class _Begun(NamedTuple):
    """A window that a backward may update, when it begins, and the gradients that reach it."""

    window: OptimizerWindow
    before: State
    gradients: dict[int, Deferred | None]  # by number of the probed parameter


class UpdatesInBackward:
    """Closes the windows whose parameters change inside a backward. The caller holds the lock."""

    def __init__(
        self, windows: OpenWindows, close: Callable[[OptimizerWindow, OpenUpdate], None]
    ) -> None:
        self._windows, self._close = windows, close
        self._updated = weakref.WeakSet[Any]()  # windows that were
        self._begun: dict[int, list[_Begun]] = {}  # by thread
        self._guard = guard.fail_open("the sample of a gradient inside a backward")

    def begin_backward(self, micro_batch: OpenMicroBatch) -> None:
        """Sample the parameters that this backward may update."""
        begun = self._begun[micro_batch.thread] = []
        for window in self._candidates():
            gradients: dict[int, Deferred | None] = {}
            parameters = window.probed_parameters
            begun.append(_Begun(window, State(parameters), gradients))
            if window in self._updated:
                for index, parameter in enumerate(parameters):
                    copy = functools.partial(self._copy, gradients, index, weakref.ref(parameter))
                    micro_batch.undo.append(parameter.register_hook(copy).remove)

    def _candidates(self) -> Iterator[OptimizerWindow]:
        for window in self._windows.of_this_thread():
            is_idle = not (window.fed or window.steps or window.micro_batches)
            if window.probed_parameters and (window.by_hand or is_idle or window in self._updated):
                yield window

    def _copy(
        self, gradients: dict[int, Deferred | None], index: int, parameter: Any, gradient: Any
    ) -> None:
        if not capturing():
            with isolated(), self._guard:
                parts = [each for each in (gradient, parameter().grad) if each is not None]
                values = list(map(gradient_probe.coordinates, parts))
                if all(value is not None for value in values):
                    gradients[index] = gradient_probe.copy_coordinates([sum(values)])

    def end_backward(
        self, micro_batch: OpenMicroBatch, reached: Sequence[OptimizerWindow]
    ) -> list[OptimizerWindow]:
        """Close the windows of what the backward has updated; returns them."""
        updated = []
        for window, before, gradients in self._begun.pop(micro_batch.thread, []):
            parameters = window.probed_parameters
            now = State(parameters)
            changed = [
                has_changed and parameter.grad is None
                for has_changed, parameter in zip(before.changed(now), parameters, strict=False)
            ]
            stepped = window.counted_number == micro_batch.number  # by an optimizer
            hidden = bool(micro_batch.hidden_parameters)  # FSDP exchanges the values
            if stepped or hidden or before.ids != now.ids or 2 * sum(changed) <= len(changed):
                continue
            self._updated.add(window)
            updated.append(window)
            if window not in reached:
                window.add_micro_batch(micro_batch)
            of_these = [index for index, has_changed in enumerate(changed) if has_changed]
            update = update_of(window, before, now, of_these)
            update.gradient = joined([gradients.get(index) for index in of_these])
            window.micro_batches[-1].sample_after = update.gradient
            self._close(window, update)
        return updated
