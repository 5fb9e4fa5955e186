"""Observes learning rates, and how often the LR scheduler is stepped inside a window."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from gradledger.capture.open_records import OpenEvent, OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import Track, Windows

COMPILED = "the LR scheduler runs inside a compiled function, where it cannot be seen"


class _OfThread(threading.local):
    inside = False  # SequentialLR and ChainedScheduler step others


class Schedule(Observer):
    """Fills ``lr`` and ``lrs``, and notes every ``schedule`` call."""

    facts = ("lr", "lrs", "schedule")

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self._windows = windows
        self._now = _OfThread()
        self._wrapped: set[type] = set()  # classes whose own ``step`` is wrapped
        self._met: set[type] = set()  # classes of which there was an object

    def install(self) -> None:
        """Wrap ``step`` where a scheduler class of PyTorch, or of the script, defines it.

        Classes that are defined later are met when their first object is made. The ``step`` that
        all others inherit is observed from inside: it warns with ``stacklevel=2``, and a wrapper
        around it would become the line that its warnings show.
        """
        self.patch(LRScheduler, "__init__", self._wrap_init, always=True)
        inside = getattr(lr_scheduler, "_enable_get_lr_call", None)
        if inside is not None:
            self.patch(inside, "__init__", self._wrap_inside)
            self._wrapped.add(LRScheduler)
        self._wrap_steps(_classes(LRScheduler))

    def _wrap_inside(self, original: Any) -> Any:
        def __init__(context: Any, scheduler: Any) -> None:
            original(context, scheduler)
            if not self._now.inside:
                self.safely(self._note, scheduler)

        return __init__

    def uninstall(self) -> None:
        """Restore every scheduler class."""
        super().uninstall()
        self._wrapped.clear()
        self._met.clear()

    def _wrap_init(self, original: Any) -> Any:
        def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            self.safely(self._meet, type(scheduler))
            original(scheduler, *args, **kwargs)

        return __init__

    def _meet(self, kind: type) -> None:
        if kind not in self._met and self._patches:
            self._met.add(kind)
            self._wrap_steps(k for k in kind.__mro__ if issubclass(k, LRScheduler))

    def _wrap_steps(self, kinds: Iterable[type]) -> None:
        for kind in kinds:
            if kind not in self._wrapped and isfunction(kind.__dict__.get("step")):
                self._wrapped.add(kind)
                self.patch(kind, "step", self._wrap)

    def _wrap(self, original: Any) -> Any:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            outermost, self._now.inside = not self._now.inside, True
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                if outermost:
                    self._now.inside = False
                    self.safely(self._note, scheduler)

        step.__wrapped__ = original  # type: ignore[attr-defined]
        return step

    def _note(self, scheduler: Any) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        for track in self._windows:
            started = track.steps or track.micro_batches  # a scheduler steps once when it is made
            if track.optimizer is optimizer and started:
                track.note(OpenEvent("schedule", 0))

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """The learning rates in force."""
        rates = [float(group["lr"]) for group in track.optimizer.param_groups if _plain(group)]
        if rates:
            step.fields["lr"] = rates[0]
        if len(rates) > 1:
            step.fields["lrs"] = rates
        if self._compiled:
            step.missing["schedule"] = COMPILED


def _plain(group: dict[str, Any]) -> bool:
    """A learning rate that is a number; a tensor on a device is not read."""
    return isinstance(group.get("lr"), (int, float))


def _classes(kind: type) -> Iterator[type]:
    """A class and all classes that were derived from it so far."""
    yield kind
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield from _classes(child)
