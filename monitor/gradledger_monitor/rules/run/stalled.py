"""run.stalled"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.loop.never_stepped import FIX_GUARD
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
# show what the process waits for, from a shell:  py-spy dump --pid PID"""

MOST_SHOWN = 8


# Backwards since the last step, and times those of the largest window: see the hooks'
# ``capture/left_open.py``, for what they report when the process ends.
FEW, TIMES_USUAL = 64, 8


class Stalled(Rule):
    """The run makes no progress.

    **What it sees**

    No step ends for more than 10 times the median gap of the last 50 steps, and for at least a
    minute. The service reports it while it continues; when the next step ends, the rule
    compares the gap before it. If more than 64 backwards have run in this time, and more than 8
    times those of the largest window, it states that no step follows them.

    **Why it matters**

    Paid hardware waits for data, a checkpoint, a lost rank or a full disk.

    **What to do**

    Find out what the process waits for: dump its stack with py-spy, and check the data loader
    and the network. If backwards run, look at the condition of the step: a guard that is never
    satisfied, or a counter.

    **When it is silent**

    Fewer than 12 steps; evaluation or checkpoints within that time; a run that has ended; an
    attempt whose launcher started the next one, with whose first record a stall is withdrawn that
    was reported before; records that arrive more than ten minutes late, such as from a spool; five
    minutes while the hooks skip short steps.

    **Incidents**

    pytorch/pytorch#38174 (ranks with different numbers of batches)
    """

    points_at = ("step", "backward")
    span = Parameter(50, "latest gaps between steps, of which the median is taken")
    needed = Parameter(10, "gaps between steps before the one that is judged")
    times = Parameter(10.0, "times the median gap")
    seconds = Parameter(60.0, "shortest gap that is reported, in seconds")

    kind = "T"

    state = declare(_gaps=deque[float], _before=float | None, _largest=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._gaps: deque[float] = deque(maxlen=self.span)
        self._before: float | None = None
        self._largest = 0  # micro-batches of a window on one rank

    def after_gap(self) -> None:
        """Steps may have ended in the meantime."""
        self._before = None

    def evaluate(self, window: Window) -> Outcome:
        """The gap before this step, against the median gap."""
        now = window.facts.time
        sizes = (len(record.micro_batches) for record in window.facts.records.values())
        self._largest = max(self._largest, *sizes)
        gap = None if self._before is None else now - self._before
        self._before = now
        if gap is None or len(self._gaps) < self.needed:
            self._gaps.extend([] if gap is None else [gap])
            return not_measured(f"needs {counted(self.needed, 'earlier gap')} between steps")
        if gap < self.seconds:  # the usual case needs no median
            self._gaps.append(gap)
            return OK
        usual, limit = median(self._gaps), self.inactivity_timeout() or 0.0
        self._gaps.append(gap)
        if gap < limit:
            return OK
        return finding(
            "warning",
            "The run had stalled",
            f"{gap:,.0f} s passed before this step; the median gap is {usual:.2f} s.",
            FIX,
            seconds=gap,
            usual_seconds=usual,
        )

    def inactivity_timeout(self) -> float | None:
        """The gap that is too long in seconds; None before enough gaps are known."""
        if len(self._gaps) < self.needed:
            return None
        return max(self.seconds, self.times * median(self._gaps))

    def evaluate_inactivity(self, inactivity: Inactivity) -> Outcome:
        """No step has ended for that long."""
        # no gap is known if the record was written under other thresholds or with more steps
        usual = median(self._gaps) if self._gaps else None
        compared = "" if usual is None else f"; the median gap is {usual:.2f} s"
        backwards = inactivity.backwards or 0
        goes_on = not inactivity.silent and 0 < TIMES_USUAL * self._largest < backwards > FEW
        before = (
            f" No step before took more than {counted(self._largest, 'backward')}: the loop may go "
            "on without its step."
        )
        return finding(
            "warning",
            "No optimizer step follows the backwards" if goes_on else "The run is stalled",
            f"No step has ended for {inactivity.seconds:,.0f} s{compared}. "
            f"{_heartbeats(inactivity)}{before if goes_on else ''}",
            FIX_GUARD if goes_on else FIX,
            seconds=inactivity.seconds,
            usual_seconds=usual,
            silent_ranks=inactivity.silent,
            **({"backwards": backwards} if goes_on else {}),
        )


def _heartbeats(inactivity: Inactivity) -> str:
    if inactivity.silent:
        ranks = _listed(inactivity.silent)
        return f"No heartbeat from {ranks} (a hung process would still send them)."
    if inactivity.backwards is None:
        return "All ranks still send heartbeats."
    backwards = counted(inactivity.backwards, "backward")
    return f"All ranks still send heartbeats, and ran up to {backwards} since the last step."


def _listed(ranks: list[int]) -> str:
    noun = "rank" if len(ranks) == 1 else "ranks"
    shown, more = ", ".join(map(str, ranks[:MOST_SHOWN])), len(ranks) - MOST_SHOWN
    return f"{noun} {shown}" if more <= 0 else f"{noun} {shown} and {more} more"
