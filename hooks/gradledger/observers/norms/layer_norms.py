"""Observes the layers: RMS of gradients, parameters and updates, at a few steps of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain, local_part, number_at_once
from gradledger.capture.layers import open_layers
from gradledger.capture.layers.frozen_zeros import FIRST_OBSERVED, frozen_beside
from gradledger.capture.layers.modes import ModedModules, Modes
from gradledger.capture.layers.open_layers import OpenLayers
from gradledger.capture.layers.parameter_names import add_model_of, names_of
from gradledger.capture.layers.unheld import UnheldParameters
from gradledger.capture.layers.untrained import Untrained
from gradledger.capture.layers.weight_decay import weight_decay_of
from gradledger.capture.open_records import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer
from gradledger.observers.norms.gradient_norm import holders, local_norms

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow


MOST_SEARCHES = 2  # for the modules that hold an optimizer's parameters
# Learning rate from which an update of that size changes float32 parameters as small as most are:
# the numbers around 0.1 are 7e-9 apart.
TINY = 1e-7
MOST_OPTIMIZERS = 8  # in a process: a search of hyperparameters may create hundreds


class _Course:
    """What is remembered of one optimizer."""

    def __init__(self) -> None:
        self.due = 1  # the next step at which the layers are measured
        self.names: dict[int, str] = {}  # by ``id`` of the parameter, in the order of the model
        self.open: tuple[OpenStep, list[Any]] | None = None  # between begin and end of a step
        self.untrained = Untrained()
        # found at the first step in models that are known by then, and again at the second
        self.moded: ModedModules | None = None
        self.modes: Modes | None = None  # of the last backward


class LayerNorms(Observer):
    """Fills ``layers``, at 3 + 10 steps of the first 50, and about 110 up to the millionth."""

    facts = ("layers",)

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows = windows
        self._unheld = UnheldParameters()
        self._courses: WeakKeyDictionary[Any, _Course] = WeakKeyDictionary()  # by window
        self._begun = self._searches = 0

    def install(self) -> None:
        """Learn whose parameters an optimizer is created with."""
        self.patch(Optimizer, "__init__", self._wrap_init, always=True)

    def _wrap_init(self, original: Any) -> Any:
        def __init__(optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
            self.run_guarded(add_model_of, args[0] if args else kwargs.get("params"))
            original(optimizer, *args, **kwargs)

        return __init__

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Whether it reaches parameters of a model that is not known yet, and the modes."""
        if self._windows.several_threads:
            return
        self._unheld.follow(roots, self._windows)
        for window in self._windows:
            if not window.steps and window not in self._courses:
                self._course_of(window)
        for window, course in self._courses.items():
            if window.steps + 1 >= course.due:
                course.moded = course.moded or ModedModules(window.parameters())
                course.modes = course.moded.read()

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Measure gradients and parameters before the step, if it is one of the few."""
        course = self._course_of(window)
        if course is None:
            step.missing["layers"] = f"measured of the first {MOST_OPTIMIZERS} optimizers only"
            return
        course.open = None
        if step.update is not None or window.by_hand:
            return
        course.untrained.observed += 1
        if step.step < course.due:
            _follow(course.untrained, step)
            return
        course.due = open_layers.next_step(step.step)
        parameters = self._trained(window, course)
        if not parameters:
            step.missing["layers"] = "no parameter that requires a gradient can be read"
        else:
            step.layers = _measure(parameters, window, course, step)
            course.open = step, parameters
        if step.layers is not None:
            step.layers.modes, course.modes = course.modes, None
        if step.step == 1:
            course.moded = None
        if self._unheld.is_due(window, step.step) and self._may_compare(step):
            step.unheld = self._unheld.compare(window, self._windows, step.step)

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Read the same coordinates again."""
        course = self._courses.get(window)
        if course is None or course.open is None:
            return
        (begun, parameters), course.open = course.open, None
        if begun is step and step.layers is not None:
            step.layers.after, _ = open_layers.copy_moved(parameters, step.layers.moved)

    def _may_compare(self, step: OpenStep) -> bool:
        """Whether the gradients of the model may be read: not those of other threads or shards."""
        sharded = "sharded" in step.fields or step.fields.get("wrapper") in ("fsdp", "fsdp2")
        return not (sharded or self._windows.several_threads)

    def _course_of(self, window: OptimizerWindow) -> _Course | None:
        course = self._courses.get(window)
        if course is None and self._begun < MOST_OPTIMIZERS:
            self._begun += 1
            course = self._courses[window] = _Course()
        return course

    def _trained(self, window: OptimizerWindow, course: _Course) -> list[Any]:
        """The parameters that require a gradient and can be read, in the order of the model."""
        by_id = {id(p): p for p in window.parameters()}
        if any(key not in course.names for key in by_id):
            self._searches += 1
            search = self._searches <= MOST_SEARCHES
            course.names = names_of(window.optimizer.param_groups, search)
        return [by_id[key] for key in course.names if key in by_id and _is_readable(by_id[key])]


def _follow(untrained: Untrained, step: OpenStep) -> None:
    """Whether parameters that had no gradient up to now have one."""
    keys, gradients = untrained.gradients()
    if keys:
        # the largest element: squares of very small ones would be 0
        step.untrained = Deferred(local_norms(gradients, math.inf))
        untrained.add(keys, step.untrained)


def _is_readable(parameter: Any) -> bool:
    if not (parameter.is_leaf and parameter.requires_grad and parameter.numel()):
        return False
    local = local_part(parameter)
    return is_plain(local) and local.layout is torch.strided


def _rounded(parameters: list[Any], moved: list[int], optimizer: Any) -> tuple[list[int], bool]:
    """The parameters of which a step may round its whole update away, and whether to float32.

    Those in half precision; without any, those in float32 if all learning rates are tiny.
    Optimizers that are not PyTorch's may round at random, or keep what is lost. Of a learning rate
    that is a tensor on a device, it is not read whether it is 0.
    """
    if not type(optimizer).__module__.startswith("torch.optim."):
        return [], False
    rates = {id(p): group.get("lr") for group in optimizer.param_groups for p in group["params"]}
    half = [i for i in moved if _is_of(parameters[i], torch.bfloat16, torch.float16)]
    if half:
        read = [(index, rates.get(id(parameters[index]))) for index in half]
        return [index for index, rate in read if number_at_once(rate)], False
    if not all(isinstance(rate, int | float) and 0 < rate <= TINY for rate in rates.values()):
        return [], False
    return [i for i in moved if _is_of(parameters[i], torch.float32)], True


def _is_of(parameter: Any, *dtypes: torch.dtype) -> bool:
    """Whether it is, and coordinates of its gradient are those of the same elements."""
    gradient = parameter.grad
    if gradient is None or parameter.dtype not in dtypes:
        return False
    return bool(gradient.dtype == parameter.dtype and gradient.stride() == parameter.stride())


def _measure(
    parameters: list[Any], window: OptimizerWindow, course: _Course, step: OpenStep
) -> OpenLayers | None:
    gradients = [p.grad for p in parameters]
    present = [index for index, gradient in enumerate(gradients) if gradient is not None]
    read = [gradients[index] for index in present]
    if not all(is_plain(part) and part.layout is torch.strided for part in map(local_part, read)):
        step.missing["layers"] = "gradients that are sparse, or of a class that is not read"
        return None
    state = window.optimizer.state
    state = state if isinstance(state, dict) else {}
    moved = open_layers.spread(len(parameters))
    before, counts = open_layers.copy_moved(parameters, moved)
    with torch.no_grad():
        weights = Deferred(local_norms(parameters))
    rounded, single = _rounded(parameters, moved, window.optimizer)
    slopes, _ = open_layers.copy_moved(gradients, rounded)
    decay = weight_decay_of(window.optimizer)
    untrained, norms = course.untrained, Deferred(local_norms(read)) if read else None
    if untrained.observed == 1:
        untrained.start(parameters, state)
    if norms is not None:
        untrained.add([id(parameters[index]) for index in present], norms)
    dead = untrained.keys() if untrained.observed >= FIRST_OBSERVED else set()
    positions = {id(p): index for index, p in enumerate(parameters) if id(p) in dead}
    return OpenLayers(
        names=[course.names[id(p)] for p in parameters],
        sizes=[local_part(p).numel() / holders(p) for p in parameters],
        gradients=[] if norms is None else [(present, norms)],
        parameters=weights,
        earlier=[i for i, p in enumerate(parameters) if gradients[i] is None and p in state],
        frozen=sum(1 for p in window.parameters() if not p.requires_grad),
        moved=moved,
        before=before,
        counts=counts,
        slopes=slopes,
        rounded=rounded,
        single=single,
        untrained=untrained.among(parameters),
        frozen_zeros=frozen_beside(positions) if positions else None,
        observed=untrained.observed,
        decay=[] if decay is None else [decay.factors.get(id(p), 0.0) for p in parameters],
        decoupled=decay is not None and decay.decoupled,
    )
