"""clip.after_step"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.clipping import clip_coefficient
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
optimizer.step()             # after the clip"""
FIX_VALUES = FIX.replace("clip_grad_norm_", "clip_grad_value_").replace("max_norm", "clip_value")


class AfterStep(Rule):
    """Gradients are clipped after the optimizer has stepped on them.

    **What it sees**

    In 3 windows in a row: every clip on the parameters of this optimizer ran after its last step
    and before the next backward, at which the gradients are absent or zero again. The norm was
    above the limit at one of them. A clip by value is information: whether a gradient was above
    its limit is not recorded.

    **Why it matters**

    The clip changes gradients that no step uses. The step before it was as large as without it,
    and so is one outlier.

    **What to do**

    Clip between the last backward and the step.

    **When it is silent**

    Another clip ran between backward and step; no norm was above the limit, or it is infinite, so
    that the clip only measures; the gradients are not zeroed (another rule).

    **Incidents**

    textbook (no single report)
    """

    points_at = ("clip_norm", "clip_value", "step")
    by_window = False
    needed = Parameter(3, "windows in a row in which every clip is late")

    state = declare(_late=int, _unclipped=bool, _engaged=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._late = 0  # windows in a row
        self._unclipped = False  # nothing was clipped between the last backward and the step
        self._engaged = False  # in one of these windows

    def after_gap(self) -> None:
        """What the window before clipped is not known."""
        self._late, self._unclipped, self._engaged = 0, False, False

    def evaluate(self, window: Window) -> Outcome:
        """Clips before the first backward, and none after it, nor after that of the last window."""
        facts = window.facts
        record = facts.record
        if "clip_norm" in record.missing:
            self.after_gap()
            return not_measured(record.missing["clip_norm"])
        clips = [*facts.own_calls("clip_norm"), *facts.own_calls("clip_value")]
        late = [e for e in clips if e.after == 0 and math.isfinite(number(e.limit) or math.inf)]
        norms = [e for e in late if e.op == "clip_norm"]
        inside = any(e.after for e in clips)
        unclipped, self._unclipped = self._unclipped, bool(record.micro_batches) and not inside
        if not (late and unclipped and self._unclipped and record.micro_batches[0].fresh):
            self._late, self._engaged = 0, False
            return OK if clips or window.past else not_applicable("the loop does not clip")
        self._late += 1
        self._engaged |= not norms or any(clip_coefficient(e) < 1 for e in norms)
        if self._late < self.needed or not self._engaged or record.closure:
            return OK
        clip = (norms or late)[-1]
        limit, norm = number(clip.limit), number(clip.norm)
        by_value = "" if norms else "by value "
        measured = "" if norm is None else f" It measured a norm of {significant(norm)}."
        return finding(
            "warning" if norms else "info",
            "Gradients are clipped after the step",
            f"In the last {counted(self._late, 'window')}, the clip {by_value}to {limit:g} ran "
            "after the step, on gradients that it had applied already and that were zeroed before "
            f"the next backward.{measured} It limited no step.",
            FIX if norms else FIX_VALUES,
            limit=limit,
            norm=norm,
            windows=self._late,
        )
