"""run.stalled"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
# what is it waiting for? ask from outside:  py-spy dump --pid PID"""

MOST_SHOWN = 8


class Stalled(Rule):
    """The run stands still.

    **What it sees**

    No step for more than 10 times the median gap of the last 50 steps, and at least a minute. The
    service says so while it lasts; when the next step comes, it is the gap between the two.

    **Why it matters**

    Paid hardware waits: for data, a checkpoint, a lost rank, a full disk.

    **What to do**

    Look at what the process was doing then: a stack dump (py-spy), the data loader, the network.

    **When it is silent**

    Fewer than 10 steps; evaluation or checkpointing that takes no longer than that; a run that has
    ended; records that came more than ten minutes late, as from a spool; five minutes while the
    hooks let short steps pass.

    **Incidents**

    pytorch/pytorch#38174 (ranks with different numbers of batches)
    """

    span = Parameter(50, "gaps between steps that are usual")
    needed = Parameter(10, "steps of history")
    times = Parameter(10.0, "times the usual gap")
    seconds = Parameter(60.0, "seconds that a gap lasts at least")

    kind = "T"

    state = declare(_gaps=deque[float], _before=float | None)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._gaps: deque[float] = deque(maxlen=self.span)
        self._before: float | None = None

    def after_gap(self) -> None:
        """Steps may have passed all the time."""
        self._before = None

    def evaluate(self, window: Window) -> Outcome:
        """The gap before this step, against the median gap."""
        now = window.facts.time
        gap = None if self._before is None else now - self._before
        self._before = now
        if gap is None or len(self._gaps) < self.needed:
            self._gaps.extend([] if gap is None else [gap])
            return not_measured(f"{self.needed} steps are needed")
        if gap < self.seconds:  # most often: no median is needed
            self._gaps.append(gap)
            return OK
        usual, limit = median(self._gaps), self.inactivity_timeout() or 0.0
        self._gaps.append(gap)
        if gap < limit:
            return OK
        return finding(
            "warning",
            "The run stood still",
            f"{gap:,.0f} s passed before this step; {usual:.2f} s are usual.",
            FIX,
            seconds=gap,
            usual_seconds=usual,
        )

    def inactivity_timeout(self) -> float | None:
        """The gap that is too long, once enough are known."""
        if len(self._gaps) < self.needed:
            return None
        return max(self.seconds, self.times * median(self._gaps))

    def evaluate_inactivity(self, inactivity: Inactivity) -> Outcome:
        """No step has come for that long."""
        # the inactivity may have been noted under another threshold, or while more steps were known
        usual = median(self._gaps) if self._gaps else None
        compared = "" if usual is None else f"; {usual:.2f} s are usual"
        return finding(
            "warning",
            "The run stands still",
            f"No step has ended for {inactivity.seconds:,.0f} s{compared}. {_life(inactivity)}",
            FIX,
            seconds=inactivity.seconds,
            usual_seconds=usual,
            silent_ranks=inactivity.silent,
        )


def _life(inactivity: Inactivity) -> str:
    if inactivity.silent:
        shown = ", ".join(map(str, inactivity.silent[:MOST_SHOWN]))
        more = len(inactivity.silent) - MOST_SHOWN
        ranks = shown if more <= 0 else f"{shown} and {more} more"
        return f"Nothing at all is heard of rank {ranks}: a process that hangs still beats."
    if inactivity.backwards is None:
        return "All ranks were heard of since."
    return f"All ranks were heard of since, and ran {inactivity.backwards:,} backwards."
