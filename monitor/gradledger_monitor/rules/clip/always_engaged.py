"""clip.always_engaged"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from gradledger_monitor.ingest.schema import Event
from gradledger_monitor.model.clipping import clip_coefficient
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, percent
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.sliding_count import push
from gradledger_monitor.rules.state import declare

FIX = """\
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=3.0)   # above the usual norm"""


NOT_ONCE = "the clip does not run once, between the last backward and the step"


class AlwaysEngaged(Rule):
    """Clipping scales the gradients down on nearly every step.

    **What it sees**

    More than 95% of the last 200 steps were clipped by norm.

    **Why it matters**

    The clip, not the gradient, then sets the length of the step: this is normalised gradient
    descent. It may be intended, but the learning rate then sets the length of each step
    directly.

    **What to do**

    Raise the threshold above the usual norm, or keep it on purpose.

    **When it is silent**

    Fewer than 200 clipped steps; the loop does not clip by norm. The clip also runs before the last
    backward, or after the step (other rules). It runs before the gradients are unscaled or divided
    (other rules), and would not engage after that.

    **Incidents**

    None: this finding is information.
    """

    points_at = ("clip_norm", "clip_value")
    span = Parameter(200, "latest clipped steps that are counted")
    share = Parameter(0.95, "share of them that are scaled down", most=1.0)

    kind = "T"

    state = declare(_last=deque[bool], _engaged=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._last: deque[bool] = deque(maxlen=self.span)  # whether each was scaled down
        self._engaged = 0  # number of steps in ``_last`` that were

    def evaluate(self, window: Window) -> Outcome:
        """The share of clips with a coefficient below 1."""
        begun = window.facts.applied_from
        calls = window.facts.own_calls("clip_norm")
        clips = [call for call in calls if call.after > begun and not _only_measures(call)]
        if not clips:
            return not_applicable("the loop does not clip by norm")
        if {clip.after for clip in clips} != {len(window.facts.record.micro_batches)}:
            return not_measured(NOT_ONCE)
        self._engaged += push(self._last, _scales_down(clips[-1], window.facts))
        if len(self._last) < self.span:
            return not_measured(f"needs {counted(self.span, 'clipped step')}")
        share = self._engaged / self.span
        if share <= self.share:
            return OK
        last = number(clips[-1].limit)
        limit = "" if last is None else f" to a norm of {last:g}"
        return finding(
            "info",
            "Clipping engages on nearly every step",
            f"Clipping scaled the gradients down{limit} in {percent(share)} of the last "
            f"{self.span} steps, so the limit sets the step length.",
            FIX,
            share=share,
            limit=last,
            norm=number(clips[-1].norm),
        )


def _only_measures(clip: Event) -> bool:
    limit = number(clip.limit)
    return limit is not None and math.isinf(limit)


def _scales_down(clip: Event, facts: StepFacts) -> bool:
    """Whether a clip engages, and would do so on gradients that are divided already."""
    norm, limit = number(clip.norm), number(clip.limit)
    if clip_coefficient(clip) == 1 or norm is None or limit is None:
        return False
    before, whole = number(clip.factor), facts.shared_factors.get(facts.lowest_rank)
    later = whole / before if before and whole and not facts.factor_unmeasured else 1.0
    return norm * min(later, 1.0) > limit
