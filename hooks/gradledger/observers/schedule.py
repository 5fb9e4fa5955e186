"""Observes learning rates, and how often the LR scheduler is stepped inside a window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler

from gradledger.ledger import OpenEvent, OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.windows import Track, Windows


class Schedule(Observer):
    """Fills ``lr`` and ``lrs``, and notes every ``schedule`` call."""

    facts = ("lr", "lrs", "schedule")

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self._windows = windows
        self._inside = False  # SequentialLR and ChainedScheduler step others

    def install(self) -> None:
        """Wrap ``step`` where a scheduler class of PyTorch, or of the user, defines it."""
        for owner in _with_step(LRScheduler):
            self.patch(owner, "step", self._wrap)

    def _wrap(self, original: Any) -> Any:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            outermost, self._inside = not self._inside, True
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                if outermost:
                    self._inside = False
                    with self.safely():
                        self._note(scheduler)

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


def _plain(group: dict[str, Any]) -> bool:
    """A learning rate that is a number; a tensor on a device is not read."""
    return isinstance(group.get("lr"), (int, float))


def _with_step(owner: type) -> Iterator[type]:
    if "step" in owner.__dict__:
        yield owner
    children: list[type] = owner.__subclasses__()
    for child in children:
        yield from _with_step(child)
