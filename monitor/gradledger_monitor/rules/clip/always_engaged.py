"""clip.always_engaged"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import clip_coefficient
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.sliding_count import push
from gradledger_monitor.rules.state import declare

FIX = """\
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=3.0)   # above the usual norm"""


class AlwaysEngaged(Rule):
    """Clipping scales the gradients down on nearly every step.

    **What it sees**

    More than 95 % of the last 200 steps were clipped by norm.

    **Why it matters**

    The step's length is set by the clip, not by the gradient: normalised gradient descent. That
    may be meant; then the learning rate means something else than it says.

    **What to do**

    Raise the threshold above the usual norm, or leave it, knowing so.

    **When it is silent**

    Fewer than 200 clipped windows were seen; the loop does not clip.

    **Incidents**

    None: this is information.
    """

    span = Parameter(200, "clipped steps that are looked at")
    share = Parameter(0.95, "share of them scaled down", most=1.0)

    kind = "T"

    state = declare(_last=deque[bool], _engaged=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._last: deque[bool] = deque(maxlen=self.span)  # whether they were scaled down
        self._engaged = 0  # how many of them were

    def evaluate(self, window: Window) -> Outcome:
        """The share of windows whose clip left less than everything."""
        clips = window.facts.own_calls("clip_norm")
        if not clips:
            return not_applicable("the loop does not clip by norm")
        self._engaged += push(self._last, clip_coefficient(clips[-1]) < 1)
        if len(self._last) < self.span:
            return not_measured(f"{self.span} clipped steps are needed")
        share = self._engaged / self.span
        if share <= self.share:
            return OK
        last = number(clips[-1].limit)
        limit = "a limit that was not seen at the last of them" if last is None else f"{last:g}"
        return finding(
            "info",
            "Clipping engages on nearly every step",
            f"{share:.0%} of the last {self.span} steps were scaled down to a norm of {limit}.",
            FIX,
            share=share,
            limit=last,
            norm=number(clips[-1].norm),
        )
