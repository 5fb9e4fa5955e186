"""scaler.unscaled_backward"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE

FIX = """\
scaler.scale(loss).backward()      # for every loss of the window"""


class UnscaledBackward(Rule):
    """One backward of a scaled window runs without ``GradScaler.scale``.

    **What it sees**

    Some micro-batches of the window start from a scaled loss, others from an unscaled one.

    **Why it matters**

    ``unscale_`` divides all gradients by the scale. A micro-batch that was not multiplied by it
    weighs tens of thousands of times less than the others, so its tokens have almost no effect.

    **What to do**

    Scale every loss of the window: ``scaler.scale(loss).backward()``.

    **When it is silent**

    No micro-batch, or every one, is scaled.

    **Incidents**

    hpcaitech/ColossalAI#1218
    """

    points_at = ("backward",)
    inhibits = ("norm.*", "loss.*")

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """Scaled and unscaled backwards in one window that the scaler steps."""
        record = window.facts.record
        applied = window.facts.applied
        unscaled = [index for index, m in applied if m.scale is None]
        if not unscaled or len(unscaled) == len(applied):
            return OK
        if not record.skipped and not window.facts.own_calls("scaler_step"):
            return OK
        scale = window.facts.scale
        return finding(
            "error",
            "A backward of a scaled window is not scaled",
            f"{len(unscaled)} of {len(applied)} micro-batches ran backward from a loss that was "
            f"not multiplied by the scale. Their gradients weigh {significant(scale or 0.0)} "
            "times too little.",
            FIX,
            micro_batches=[index + 1 for index in unscaled],
            scale=scale,
        )
