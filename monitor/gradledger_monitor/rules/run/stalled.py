"""run.stalled"""

from __future__ import annotations

from collections import deque
from statistics import median

from gradledger_monitor.findings import Outcome
from gradledger_monitor.rules.base import Parameter, Rule, Window, finding, not_measured, ok

FIX = """\
# what is it waiting for? ask from outside:  py-spy dump --pid PID"""


class Stalled(Rule):
    """The run stands still.

    **What it sees**

    The time between two steps is more than 10 times the median of the last 50 and at least a
    minute.

    **Why it matters**

    Paid hardware waits: for data, a checkpoint, a lost rank, a full disk.

    **What to do**

    Look at what the process was doing then: a stack dump (py-spy), the data loader, the network.

    **When it is silent**

    Fewer than 10 steps; evaluation or checkpointing that takes no longer than that.

    **Incidents**

    pytorch/pytorch#38174 (ranks with different numbers of batches)
    """

    span = Parameter(50, "gaps between steps that are usual")
    needed = Parameter(10, "steps of history")
    times = Parameter(10.0, "times the usual gap")
    seconds = Parameter(60.0, "seconds that a gap lasts at least")

    kind = "T"

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=self.span)
        self._before: float | None = None

    def judge(self, window: Window) -> Outcome:
        """The gap before this step, against the median gap."""
        now = window.facts.time
        gap = None if self._before is None else now - self._before
        self._before = now
        if gap is None or len(self._gaps) < self.needed:
            self._gaps.extend([] if gap is None else [gap])
            return not_measured(f"{self.needed} steps are needed")
        usual = median(self._gaps)
        self._gaps.append(gap)
        if gap < self.seconds or gap < self.times * usual:
            return ok()
        return finding(
            "warning",
            "The run stood still",
            f"{gap:,.0f} s passed before this step; {usual:.2f} s are usual.",
            FIX,
            seconds=gap,
            usual_seconds=usual,
        )
