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


class AfterStep(Rule):
    """Gradients are clipped after the optimizer has stepped on them.

    **What it sees**

    In 3 windows in a row: every clip by norm on the parameters of this optimizer ran after its
    last step and before the next backward, at which the gradients are absent or zero again. The
    norm was above the limit at one of them.

    **Why it matters**

    The clip changes gradients that no step uses. The step before it was as large as without it,
    and so is one outlier.

    **What to do**

    Clip between the last backward and the step.

    **When it is silent**

    Another clip ran between backward and step; no norm was above the limit, or it is infinite, so
    that the clip only measures; the gradients are not zeroed (another rule); clips by value, of
    which it is not known whether they change anything.

    **Incidents**

    textbook (no single report)
    """

    points_at = ("clip_norm", "step")
    by_window = False
    inhibits = ("clip.always_engaged",)
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
        clips = facts.own_calls("clip_norm")
        late = [e for e in clips if e.after == 0 and math.isfinite(number(e.limit) or math.inf)]
        inside = any(e.after for e in (*clips, *facts.own_calls("clip_value")))
        unclipped, self._unclipped = self._unclipped, bool(record.micro_batches) and not inside
        if not (late and unclipped and self._unclipped and record.micro_batches[0].fresh):
            self._late, self._engaged = 0, False
            return OK if clips or window.past else not_applicable("the loop does not clip by norm")
        self._late += 1
        self._engaged |= any(clip_coefficient(e) < 1 for e in late)
        if self._late < self.needed or not self._engaged or record.closure:
            return OK
        limit, norm = number(late[-1].limit), number(late[-1].norm)
        measured = "" if norm is None else f" It measured a norm of {significant(norm)}."
        return finding(
            "warning",
            "Gradients are clipped after the step",
            f"In the last {counted(self._late, 'window')}, the clip to {limit:g} ran after the "
            f"step, on gradients that it had applied already and that were zeroed before the next "
            f"backward.{measured} It limited no step.",
            FIX,
            limit=limit,
            norm=norm,
            windows=self._late,
        )
