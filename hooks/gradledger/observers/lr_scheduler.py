"""Observes learning rates, and the steps of LR schedulers inside a window."""

from __future__ import annotations

import functools
import inspect
import re
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from gradledger.capture.isolation import number_at_once
from gradledger.capture.open_parts import OpenEvent, Schedule
from gradledger.capture.open_records import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer
from gradledger.observers.ranks.process_groups import world_size

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

PATIENT = 50  # calls: a ReduceLROnPlateau that waits for as many may be called at each step
UNPLANNED = "the LR schedule has no number of steps, or none that can be read"
COMPILED = "the LR scheduler runs inside a compiled function, where it cannot be seen"


class _ThreadStepping(threading.local):
    inside = False  # a step runs; SequentialLR and ChainedScheduler step others inside theirs


class LearningRates(Observer):
    """Fills ``lr``, ``lrs`` and ``rate_moves``, and notes steps of a scheduler as ``schedule``."""

    facts = ("lr", "lrs", "rate_moves", "schedule", "scheduled", "schedule_total")

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows = windows
        self._thread = _ThreadStepping()
        self._wrapped: set[type] = set()  # classes that define ``step``, which is wrapped
        self._used: set[type] = set()  # classes of which an object was created
        # Steps of each optimizer that were observed, and their micro-batches.
        self._counts: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        # The rates of each optimizer at its first step; empty once one has moved.
        self._rates: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Wrap ``step`` of every scheduler class of PyTorch, or of the script, that defines it.

        A class that is defined later is wrapped when its first object is created. The ``step`` of
        the base class is observed from inside, because it warns with ``stacklevel=2``, and its
        warnings would show the line of a wrapper.
        """
        self.patch(LRScheduler, "__init__", self._wrap_init, always=True)
        get_lr_call = getattr(lr_scheduler, "_enable_get_lr_call", None)
        if get_lr_call is not None:
            self.patch(get_lr_call, "__init__", self._wrap_get_lr_call)
            self._wrapped.add(LRScheduler)
        self._wrap_steps(classes_of(LRScheduler))

    def _wrap_get_lr_call(self, original: Any) -> Any:
        def __init__(context: Any, scheduler: Any) -> None:
            original(context, scheduler)
            if not self._thread.inside:
                self.run_guarded(self._add_event, scheduler)

        return __init__

    def uninstall(self) -> None:
        """Restore every scheduler class."""
        super().uninstall()
        self._wrapped.clear()
        self._used.clear()

    def _wrap_init(self, original: Any) -> Any:
        def __init__(scheduler: Any, /, *args: Any, **kwargs: Any) -> None:
            self.run_guarded(self._wrap_class, type(scheduler))
            original(scheduler, *args, **kwargs)
            self.run_guarded(self._locate, scheduler)

        return __init__

    def _locate(self, scheduler: Any) -> None:
        """Where the script creates a scheduler: a plan is in its arguments."""
        for window in self._windows_of(scheduler):
            window.code.locate("new_schedule", window.steps)

    def _windows_of(self, scheduler: Any) -> Iterator[OptimizerWindow]:
        # an optimizer that a framework wraps shares the groups of the wrapped one
        groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)
        for window in self._windows:
            own = getattr(window.optimizer, "param_groups", None)
            if own is not None and own is groups:
                yield window

    def _wrap_class(self, kind: type) -> None:
        if kind not in self._used and self._patches:
            self._used.add(kind)
            self._wrap_steps(base for base in kind.__mro__ if issubclass(base, LRScheduler))

    def _wrap_steps(self, kinds: Iterable[type]) -> None:
        for kind in kinds:
            if kind not in self._wrapped and inspect.isfunction(kind.__dict__.get("step")):
                self._wrapped.add(kind)
                self.patch(kind, "step", self._wrap_step)

    def _wrap_step(self, original: Any) -> Any:
        inner = inspect.unwrap(original)  # what decorators call, which may be no function
        code = inner.__code__ if inspect.isfunction(inner) else original.__code__
        takes_epoch = "epoch" in code.co_varnames[1:2]

        def step(scheduler: Any, /, *args: Any, **kwargs: Any) -> Any:
            outermost, self._thread.inside = not self._thread.inside, True
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                if outermost:
                    self._thread.inside = False
                    if not (takes_epoch and (args or kwargs)):  # its number of calls is no matter
                        metric = args[0] if args else kwargs.get("metrics")
                        self.run_guarded(self._add_event, scheduler, metric)

        step.__wrapped__ = original  # type: ignore[attr-defined]
        return step

    def _add_event(self, scheduler: Any, metric: Any = None) -> None:
        if isinstance(scheduler, lr_scheduler.CyclicLR):
            return  # PyTorch documents it as counted in batches, and it has no end
        for window in self._windows_of(scheduler):
            if window.steps or window.micro_batches:  # a new scheduler steps once by itself
                event = OpenEvent("schedule", 0)
                if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                    event.metric = _metric(scheduler, metric)
                    event.mode = _mode(scheduler)
                window.add_event(event)
                self._follow(scheduler, window)

    @staticmethod
    def _follow(scheduler: Any, window: OptimizerWindow) -> None:
        if window.schedule is None:
            window.schedule = Schedule(frozenset(_planned(scheduler)), world_size())
        schedule = window.schedule
        schedule.done += 1
        if schedule.done == 1:
            schedule.rate_begun = _rate(window)
        if schedule.scheduler is None or schedule.scheduler() is not scheduler:
            schedule.scheduler, schedule.fell = weakref.ref(scheduler), False
            schedule.total, schedule.by_function = _total(scheduler)
            schedule.warmup = _warmup(scheduler)
            schedule.resumed = window.resumed if _position(schedule) == schedule.done else 0

    def backward_ends(self, micro_batch: OpenMicroBatch, reached: list[OptimizerWindow]) -> None:
        """Count whether the rate has moved since the micro-batch before, of the same window."""
        for window in reached:
            rate = _rate(window)
            if rate is not None:
                before, window.rate = window.rate, rate
                window.rate_moves += len(window.micro_batches) > 1 and window.rate != before

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Record the learning rates that the step applies, and whether it follows the gradient."""
        step.fields["rate_moves"], window.rate_moves = window.rate_moves, 0
        read = [number_at_once(group.get("lr")) for group in window.optimizer.param_groups]
        rates = [] if None in read else [rate for rate in read if rate is not None]
        if rates:  # of all groups: rules compare them
            step.fields["lr"] = rates[0]
        if len(rates) > 1:
            step.fields["lrs"] = rates
        if rates and all(group.get("maximize") for group in window.optimizer.param_groups):
            step.fields["maximises"] = True
        counts = self._counts.setdefault(window, [0, 0])
        counts[0] += 1
        counts[1] += len(step.micro_batches)
        if self._rates.setdefault(window, rates) != rates:
            self._rates[window] = []
        if window.schedule is not None:
            schedule = window.schedule
            schedule.steps, schedule.micro_batches = counts
            schedule.rate = rates[0] if rates else 0.0
            if schedule.first is None:
                schedule.first = schedule.rate
            schedule.rises &= schedule.rate >= schedule.highest
            schedule.highest = max(schedule.highest, schedule.rate)
            schedule.fell |= schedule.is_low()
            step.fields["scheduled"] = _position(schedule)
            if schedule.fell or not schedule.by_function:
                step.fields["schedule_total"] = schedule.total
            if not schedule.planned:
                step.missing["schedule_total"] = UNPLANNED
        elif self._rates[window]:
            self._note_elsewhere(step, window)
        if self._compiled:
            step.missing["schedule"] = COMPILED

    def _note_elsewhere(self, step: OpenStep, window: OptimizerWindow) -> None:
        """A schedule of an earlier optimizer, which this one was created again in place of.

        The earlier one has never stepped: another one may have ended a phase of the training. A
        schedule that stepped more often than this optimizer trained was run to show its rates.
        """
        for other in self._windows:
            if other is window:
                return  # those after it were created later
            schedule, rate = other.schedule, _rate(other)
            if schedule is None or other.steps or other.name != window.name:
                continue
            own, earlier = (set(map(id, each.parameters())) for each in (window, other))
            is_again = earlier and (earlier <= own or own <= earlier)
            in_turn = schedule.done <= self._counts[window][1]
            if is_again and in_turn and rate is not None and rate != schedule.rate_begun:
                step.fields["elsewhere"] = schedule.done
                step.fields["rate_elsewhere"] = rate
                window.code.copy_from(other.code, "schedule")


def _metric(scheduler: Any, metric: Any) -> float | None:
    """What the scheduler was given, unless it is made for more calls than a mean is needed for."""
    patience = getattr(scheduler, "patience", None)
    return number_at_once(metric) if type(patience) is int and patience < PATIENT else None


def _mode(scheduler: Any) -> Literal["min", "max"] | None:
    """Which values the scheduler takes for better ones: smaller or larger.

    None if its optimizer maximises: what is better than the loss of a backward is not known.
    """
    mode = getattr(scheduler, "mode", None)
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", ())
    if any(group.get("maximize") for group in groups):
        return None
    return mode if mode in ("min", "max") else None


def _rate(window: OptimizerWindow) -> float | None:
    """The learning rate of the first parameter group, if it is a number on the host."""
    groups = getattr(window.optimizer, "param_groups", None)
    return number_at_once(groups[0].get("lr")) if groups else None


def _total(scheduler: Any) -> tuple[int | None, bool]:
    """The steps after which a schedule has ended, and whether a function was read for it.

    A function may hold numbers of the warm-up alone, so that its largest is the total only once
    the rate has come down. That of ``LinearLR`` and ``ConstantLR`` is a warm-up, unless it falls.
    """
    last: Any = scheduler
    while type(parts := getattr(last, "_schedulers", None)) is list and parts:
        last = parts[-1]
    if isinstance(last, lr_scheduler.ConstantLR):
        return None, False
    if isinstance(last, lr_scheduler.LinearLR) and last.start_factor <= last.end_factor:
        return None, False
    return max(filter(_is_count, _planned(scheduler)), default=None), hasattr(last, "lr_lambdas")


def _position(schedule: Schedule) -> int:
    """The step that the scheduler states it is at; without one, those that were observed."""
    at: Any = getattr(schedule.scheduler and schedule.scheduler(), "last_epoch", None)
    return at if _is_count(at) else schedule.done


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**53  # what a record may hold


# Parts of the names of numbers that are no number of all steps.
_OF_PARTS = ("warm", "per", "epoch", "batch", "loader", "cycle", "accum")


_OF_ALL = re.compile("total|train|step|iter")  # in the name of the number of all steps


def _planned(scheduler: Any) -> Iterator[int]:
    """The numbers of steps for which a schedule may be planned: read, and never computed."""
    for name in ("total_steps", "T_max", "total_iters"):
        value = getattr(scheduler, name, None)
        if type(value) is int:
            yield value
    parts = getattr(scheduler, "_schedulers", None)  # of a sequence, in turn
    if type(parts) is list and parts:
        before = (getattr(scheduler, "_milestones", None) or [0])[-1]
        yield from (before + steps for steps in _planned(parts[-1]))
    for function in getattr(scheduler, "lr_lambdas", ()):
        for name, value in _numbers_of(function):
            if type(value) is int and not any(part in name.lower() for part in _OF_PARTS):
                yield value


def _warmup(scheduler: Any) -> tuple[int, int] | None:
    """The steps of the plan and of the warm-up, if a function names a warm-up that is as long."""
    numbers = [n for f in getattr(scheduler, "lr_lambdas", ()) for n in _numbers_of(f)]
    counts = [(name.lower(), value) for name, value in numbers if _is_count(value)]
    if any(part in name for name, _ in counts for part in _OF_PARTS[1:]):
        return None  # it may multiply them
    warmup = max((value for name, value in counts if "warm" in name), default=0)
    of_all = [value for name, value in counts if _OF_ALL.search(name) and "warm" not in name]
    return (max(of_all), warmup) if of_all and max(of_all) <= warmup else None


def _numbers_of(function: Any) -> Iterator[tuple[str, Any]]:
    """The arguments of a partial function (transformers), or the variables around a function."""
    if isinstance(function, functools.partial):
        yield from function.keywords.items()
    elif inspect.isfunction(function):
        code, around = function.__code__, function.__globals__
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        yield from ((name, cell.cell_contents) for name, cell in cells if _is_filled(cell))
        yield from ((name, around[name]) for name in code.co_names if name in around)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def classes_of(kind: type) -> Iterator[type]:
    """A class and its subclasses of all levels, as far as they are defined."""
    yield kind
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield from classes_of(child)
