"""Observes where training continues: loaded states, and optimizers that replace an earlier one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from gradledger.capture.async_copy import Deferred
from gradledger.capture.gradient_probe import copy_coordinates
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
    beginning: _Beginning
    scaler: OpenScaler | None = None  # at its last step
    steps_before: int = 0  # that an earlier optimizer of its parameters had made
    # parameters as it left them after as many steps, if it has a state then
    left: Deferred | None = None
    handovers: tuple[tuple[Deferred, Deferred], ...] = ()


class _Beginning(NamedTuple):
    """What optimizers that are created again and again have in common at their first step."""

    kind: type[Any]
    parameters: tuple[int, ...]  # ids
    settings: tuple[Any, ...] | None  # of the parameter groups; None: not known


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

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample the parameters where another optimizer would take over, if this one did there."""
        course = self._courses.get(step.optimizer)
        if course is not None and course.steps_before == step.step and _has_state(window):
            course.left = copy_coordinates(window.probed_parameters)

    def _begin(self, step: OpenStep, window: OptimizerWindow) -> _Course | None:
        parameters = window.parameters()
        if not parameters:
            return None
        beginning = _Beginning(
            type(window.optimizer), tuple(map(id, parameters)), _settings(window.optimizer)
        )
        course = _Course(TensorWeakRef(parameters[0]), beginning)
        for index, earlier in reversed(self._courses.items()):
            if earlier.first() is parameters[0]:
                steps = course.steps_before = self._windows.steps[index]
                now = copy_coordinates(window.probed_parameters)
                is_same = earlier.steps_before == steps and earlier.beginning == beginning
                is_empty = beginning.settings is not None and not window.optimizer.state
                if is_same and is_empty and earlier.left is not None and now is not None:
                    course.handovers = (*earlier.handovers, (earlier.left, now))[-MOST_OPTIMIZERS:]
                step.replaced = OpenReplaced(
                    index, steps, earlier.scaler, course.handovers, _horizon(window.optimizer)
                )
                break
        if len(self._courses) >= MOST_OPTIMIZERS:
            del self._courses[next(iter(self._courses))]
        self._courses[step.optimizer] = course
        return course


def _has_state(window: OptimizerWindow) -> bool:
    """Whether the optimizer has an average, such as a momentum, of its first parameter."""
    first: Any = next(iter(window.parameters()), None)
    state = {} if first is None else window.optimizer.state.get(first, {})
    return any(getattr(value, "shape", None) == first.shape for value in state.values())


def _settings(optimizer: Any) -> tuple[Any, ...] | None:
    """Those of all parameter groups; None if one of them is a tensor or an object."""
    groups = [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
    settings = tuple(tuple(sorted(group.items())) for group in groups)
    return settings if all(_is_plain(v) for group in groups for v in group.values()) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _horizon(optimizer: Any) -> float | None:
    """Steps that the longest average of the state reaches back, by its factor."""
    factors: list[Any] = []
    for group in optimizer.param_groups:
        factors += [*group.get("betas", ()), group.get("momentum")]
    averages = [factor for factor in factors if isinstance(factor, float) and 0 < factor < 1]
    return 1 / (1 - max(averages)) if averages else None
