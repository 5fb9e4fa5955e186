"""Observes where training continues: loaded states, and optimizers that replace an earlier one."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.weak import TensorWeakRef

from gradledger.capture.async_copy import Deferred
from gradledger.capture.gradient_probe import copy_coordinates
from gradledger.capture.isolation import number_at_once
from gradledger.capture.open_parts import OpenReplaced, OpenScaler
from gradledger.capture.open_records import OpenStep
from gradledger.observers.base import Observer
from gradledger.observers.lr_scheduler import classes_of
from gradledger.records import Resumed

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

MOST_OPTIMIZERS = 8  # that a new one may replace: a process may create hundreds
_RATES = ("lr", "initial_lr")


@dataclass
class _Course:
    """What is remembered of one optimizer."""

    first: TensorWeakRef  # its first parameter
    beginning: _Beginning
    scaler: OpenScaler | None = None  # at its last step
    lr: float | None = None  # at its last step
    steps_before: int = 0  # that an earlier optimizer of its parameters had made
    # parameters as it left them after as many steps, if it has a state then
    left: Deferred | None = None
    handovers: tuple[tuple[Deferred, Deferred], ...] = ()


class _Beginning(NamedTuple):
    """What optimizers that are created again and again have in common at their first step."""

    kind: type[Any]
    parameters: tuple[int, ...]  # ids
    # of the parameter groups, without the learning rate, which may differ; None: not known
    settings: tuple[Any, ...] | None


class Resumes(Observer):
    """Fills ``replaced`` and ``resumed``, and notes ``load_state`` in the optimizer's window."""

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows = windows
        self._courses: dict[int, _Course] = {}  # by number of the optimizer, the latest last
        # of optimizers that have not stepped since: what their loaded states hold
        self._loaded: weakref.WeakKeyDictionary[Any, Resumed] = weakref.WeakKeyDictionary()
        self._schedules: list[tuple[weakref.ref[Any], int]] = []  # schedulers that were loaded

    def install(self) -> None:
        """Wrap ``load_state_dict`` of optimizers, which subclasses call, too, and of schedulers."""
        self.patch(Optimizer, "load_state_dict", self._wrap_load)
        for kind in classes_of(LRScheduler):
            if "load_state_dict" in kind.__dict__:
                self.patch(kind, "load_state_dict", self._wrap_load_schedule)

    def _wrap_load(self, original: Any) -> Any:
        def load_state_dict(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            self.run_guarded(self._windows.add_own_event, "load_state", optimizer)
            self.run_guarded(self._note_loaded, optimizer)
            return result

        return load_state_dict

    def _wrap_load_schedule(self, original: Any) -> Any:
        def load_state_dict(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scheduler, *args, **kwargs)
            self.run_guarded(self._note_schedule, scheduler)
            return result

        return load_state_dict

    def _note_loaded(self, optimizer: Any) -> None:
        groups = optimizer.param_groups
        steps = [number_at_once(state.get("step")) for state in _some(optimizer.state)]
        lr, initial = (number_at_once(groups[0].get(name)) for name in ("lr", "initial_lr"))
        self._loaded[optimizer] = Resumed(
            loaded=True,
            trained=bool(optimizer.state),
            steps=max((int(count) for count in steps if count is not None), default=None),
            lr=lr,
            under_schedule=all("initial_lr" in group for group in groups),
            moved=bool(optimizer.state) and None not in (lr, initial) and lr != initial,
        )

    def _note_schedule(self, scheduler: Any) -> None:
        step = getattr(scheduler, "last_epoch", None)
        if type(step) is int and len(self._schedules) < MOST_OPTIMIZERS:
            self._schedules.append((weakref.ref(scheduler), step))

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Whether another optimizer has stepped the same parameters before this one did."""
        course = self._courses.get(step.optimizer)
        if course is None and step.step == 1 and not window.by_hand:
            course = self._begin(step, window)
        if course is not None:
            course.scaler = step.scaler
            course.lr = None if "lrs" in step.fields else step.fields.get("lr")
        if step.step == 1 and step.replaced is None and not window.by_hand:
            self._note_resumed(step, window)

    def _note_resumed(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Before the first step: which states were loaded, and whether the optimizer has one."""
        optimizer = window.optimizer
        resumed = self._loaded.pop(optimizer, None) or Resumed()
        for reference, position in self._schedules:
            of: Any = getattr(reference(), "optimizer", None)  # or of a framework's, around it
            if getattr(of, "param_groups", None) is optimizer.param_groups:
                resumed.schedule = position
        if resumed.schedule is not None and not (resumed.loaded or optimizer.state):
            is_known = type(optimizer).__module__.startswith("torch.optim.")
            resumed.empty = _horizon(optimizer) if is_known else None
        if resumed.loaded or resumed.schedule is not None:
            step.fields["resumed"] = resumed
        if resumed.loaded and resumed.under_schedule and resumed.schedule is None:
            window.resumed = resumed.steps or 0

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
                horizon = _horizon(window.optimizer)
                step.replaced = OpenReplaced(
                    index, steps, earlier.scaler, course.handovers, horizon, earlier.lr
                )
                break
        if len(self._courses) >= MOST_OPTIMIZERS:
            del self._courses[next(iter(self._courses))]
        self._courses[step.optimizer] = course
        return course


def _some(state: Any) -> list[Any]:
    """The states of a few parameters."""
    return list(itertools.islice(state.values(), MOST_OPTIMIZERS))


def _has_state(window: OptimizerWindow) -> bool:
    """Whether the optimizer has an average, such as a momentum, of its first parameter."""
    first: Any = next(iter(window.parameters()), None)
    state = {} if first is None else window.optimizer.state.get(first, {})
    return any(getattr(value, "shape", None) == first.shape for value in state.values())


def _settings(optimizer: Any) -> tuple[Any, ...] | None:
    """Those of all parameter groups; None if one of them is a tensor or an object."""
    groups = [
        {**{k: v for k, v in group.items() if k not in _RATES}, "params": len(group["params"])}
        for group in optimizer.param_groups
    ]
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
