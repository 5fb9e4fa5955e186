"""How far a run has come, how fast it goes, and how long it will still take where that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.store.runs.queries import RunRow

# what scripts and frameworks call the number of optimizer steps that they mean to take
TOTALS = ("planned_steps", "max_steps", "total_steps", "num_training_steps", "max_iters")


@dataclass(frozen=True)
class Progress:
    """``total`` is in optimizer steps, ``rate`` in steps per second, ``eta`` in seconds."""

    steps: int
    total: int | None
    rate: float | None
    eta: float | None

    @property
    def share(self) -> float | None:
        """How much of the run is done, 0 to 1."""
        return min(self.steps / self.total, 1.0) if self.total else None

    @property
    def speed(self) -> str:
        """The rate in words."""
        if self.rate is None:
            return formatting.NOT_MEASURED
        if self.rate >= 1:
            return f"{formatting.figure(self.rate, 3)} steps/s"
        return f"{formatting.figure(1 / self.rate, 3)} s/step"


def progress_of(run: RunRow, rate: float | None) -> Progress:
    """The progress of a run; time is eta only while it goes on."""
    total = planned_steps(run.config)
    steps = run.steps // max(len(run.optimizers), 1)
    goes_on = total is not None and rate and not run.ended and steps < total
    eta = (total - steps) / rate if goes_on and total and rate else None
    return Progress(steps, total, rate, eta)


def planned_steps(config: Mapping[str, Any]) -> int | None:
    """The number of optimizer steps that a configuration announces."""
    for name in TOTALS:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units."""
    if seconds is None:
        return formatting.NOT_MEASURED
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    rest = int(seconds)
    parts: list[str] = []
    for size, unit in units:
        if rest >= size or (unit == "s" and not parts):
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts[:2])
