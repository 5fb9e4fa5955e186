"""The progress of a run: steps done, steps planned, speed and ETA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.store.runs.queries import RunRow

# Names that scripts and frameworks give to the planned number of optimizer steps.
PLANNED_STEPS_KEYS = (
    "planned_steps",
    "max_steps",
    "total_steps",
    "num_training_steps",
    "max_iters",
)


@dataclass(frozen=True)
class Progress:
    """``total`` is in optimizer steps, ``rate`` in steps per second, ``eta`` in seconds."""

    steps: int
    total: int | None
    rate: float | None
    eta: float | None

    @property
    def fraction(self) -> float | None:
        """The part of the run that is done, 0 to 1."""
        return min(self.steps / self.total, 1.0) if self.total else None

    @property
    def done(self) -> str:
        """The steps as text: of those planned, unless there were more."""
        if self.total is None:
            return formatting.count(self.steps)
        if self.steps > self.total:
            return f"{formatting.count(self.steps)} ({formatting.count(self.total)} planned)"
        return f"{formatting.count(self.steps)} of {formatting.count(self.total)}"

    @property
    def speed(self) -> str:
        """The rate as text."""
        if self.rate is None:
            return formatting.NOT_MEASURED
        if self.rate < 1:
            return f"{formatting.figure(1 / self.rate, 3)} s/step"
        steps = formatting.figure(self.rate, 3)
        return f"{steps} step/s" if steps == "1" else f"{steps} steps/s"


SILENT_AFTER = 30.0  # seconds without the same: nobody knows when it will be done
LOST_AFTER = 120.0  # seconds without a record or a heartbeat, which is sent every ten


def is_lost(run: RunRow, now: float) -> bool:
    """Whether a run stopped sending without its end: its process was killed, or is unreachable."""
    return not run.ended and now - run.last_seen > LOST_AFTER


def progress_of(run: RunRow, rate: float | None, now: float = 0.0) -> Progress:
    """The progress of a run. One that ended or is silent has no ETA; one that is lost, no rate."""
    total = planned_steps(run.config)
    rate = None if is_lost(run, now) else rate
    steps = run.steps // max(len(run.optimizers), 1)
    is_silent = now - run.last_seen > SILENT_AFTER
    if total is None or not rate or run.ended or is_silent or steps >= total:
        return Progress(steps, total, rate, None)
    return Progress(steps, total, rate, (total - steps) / rate)


def planned_steps(config: Mapping[str, Any]) -> int | None:
    """The planned number of optimizer steps, if the configuration has it."""
    for name in PLANNED_STEPS_KEYS:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
