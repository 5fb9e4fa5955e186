"""How far a check has come, as lines for a person who waits at a terminal.

Whole lines, not one that is drawn again: the command writes to the same terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradledger_monitor.store.runs.queries import RunRow
from gradledger_web import formatting

FIRST_SECONDS, MOST_SECONDS = 2.0, 30.0  # between two lines; each pause is twice the one before


class Progress:
    """Writes a line at growing intervals, once a step is recorded."""

    def __init__(
        self,
        list_runs: Callable[[], Sequence[RunRow]],
        max_steps: int | None,
        write: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """``clock`` is in seconds."""
        self._list_runs = list_runs
        self._max_steps = max_steps
        self._write = write
        self._clock = clock
        self._started = clock()
        self._pause = FIRST_SECONDS
        self._next = self._started + FIRST_SECONDS

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self._clock() - self._started

    def update(self) -> None:
        """Write a line if one is due; call this often."""
        now = self._clock()
        if now < self._next:
            return
        self._pause = min(2 * self._pause, MOST_SECONDS)
        self._next = now + self._pause
        runs = [run for run in self._list_runs() if run.steps]
        if runs:
            self._write(line(max(runs, key=lambda r: r.started), self._max_steps, self.seconds))


def line(run: RunRow, max_steps: int | None, seconds: float) -> str:
    """``step 34/60, 2 ranks, ok so far, 12 s``."""
    total = f"/{formatting.count(max_steps)}" if max_steps else ""
    ranks = formatting.plural(run.world_size, "rank")
    return (
        f"step {formatting.count(run.steps)}{total}, {ranks}, {_verdict(run)}, "
        f"{formatting.duration(seconds)}"
    )


def _verdict(run: RunRow) -> str:
    if run.primary:
        return f"{run.verdict}: {run.primary}"
    return "ok so far" if run.verdict == "balanced" else "no findings so far"
