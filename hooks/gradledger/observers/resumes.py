"""Observes where training continues: loaded states, and optimizers that replace an earlier one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from gradledger.capture.open_parts import OpenReplaced, OpenScaler
from gradledger.capture.open_records import OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

MOST_OPTIMIZERS = 8  # that a new one may replace: a process may create hundreds


@dataclass
class _Course:
    """What is remembered of one optimizer."""

    first: TensorWeakRef  # its first parameter
    scaler: OpenScaler | None = None  # at its last step


class Resumes(Observer):
    """Fills ``replaced``, and notes ``load_state`` in the window of the optimizer."""

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows = windows
        self._courses: dict[int, _Course] = {}  # by number of the optimizer, the latest last

    def install(self) -> None:
        """Wrap ``Optimizer.load_state_dict``, which subclasses call, too."""
        self.patch(Optimizer, "load_state_dict", self._wrap_load)

    def _wrap_load(self, original: Any) -> Any:
        def load_state_dict(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            self.run_guarded(self._windows.add_own_event, "load_state", optimizer)
            return result

        return load_state_dict

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Whether another optimizer has stepped the same parameters before this one did."""
        course = self._courses.get(step.optimizer)
        if course is None and step.step == 1 and not window.by_hand:
            course = self._begin(step, window)
        if course is not None:
            course.scaler = step.scaler

    def _begin(self, step: OpenStep, window: OptimizerWindow) -> _Course | None:
        first = next(iter(window.parameters()), None)
        if first is None:
            return None
        for index, earlier in reversed(self._courses.items()):
            if earlier.first() is first:
                step.replaced = OpenReplaced(index, self._windows.steps[index], earlier.scaler)
                break
        if len(self._courses) >= MOST_OPTIMIZERS:
            del self._courses[next(iter(self._courses))]
        course = self._courses[step.optimizer] = _Course(TensorWeakRef(first))
        return course
