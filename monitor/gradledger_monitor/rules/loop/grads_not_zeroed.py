"""loop.grads_not_zeroed"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
optimizer.step()
optimizer.zero_grad(set_to_none=True)"""


class GradsNotZeroed(Rule):
    """Gradients of the last window are still there when the next one begins.

    **What it sees**

    The gradients are neither absent nor zero when the first backward of a window starts, and
    nothing clears them before the step; or a backward on which another optimizer has stepped is
    part of what this one applies.

    **Why it matters**

    Every step applies the sum of all gradients since the beginning: a momentum of 1 that nobody
    chose.

    **What to do**

    Call ``optimizer.zero_grad()`` after each step, for every optimizer whose parameters got
    gradients.

    **When it is silent**

    The gradients are cleared before they are used (a GAN's discriminator); the step was skipped
    by the GradScaler.

    **Incidents**

    karpathy/llm.c#548, Hsintien-Ng/idinvert_pytorch-reproduced#1, pytorch/pytorch#47175
    """

    inhibits = ("reduction.*", "norm.*", "batch.*", "loop.step_every_microbatch")

    state = declare(_skipped=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._skipped = False

    def after_gap(self) -> None:
        """It may have been skipped."""
        self._skipped = True

    def evaluate(self, window: Window) -> Outcome:
        """The first kept backward found old gradients, or somebody else's backward is kept."""
        facts = window.facts
        skipped, self._skipped = self._skipped, facts.record.skipped
        if facts.record.skipped or not facts.applied:
            return not_applicable("no step was taken on gradients of this window")
        first = facts.applied[0][1]
        if first.fresh is None:
            return not_measured("the gradients before the window were not seen")
        claimed = [index for index, m in facts.applied if m.claimed]
        leaked = 0 < len(claimed) < len(facts.applied)
        if (first.fresh or skipped) and not leaked:
            return OK
        what = (
            f"{len(claimed)} of {len(facts.applied)} backwards in the window belong to another "
            "optimizer's loss, which has stepped on them already; their gradients leaked into this "
            "optimizer's parameters and were not cleared."
            if leaked
            else "The window begins on gradients that are still there from before: nothing has "
            "zeroed them since the last step."
        )
        return finding(
            "error",
            "Another loss's gradients leak into the step"
            if leaked
            else "Gradients are not zeroed between steps",
            what,
            FIX,
            leaked_micro_batches=[index + 1 for index in claimed][:32],
            norm=number(facts.record.norm),
        )
