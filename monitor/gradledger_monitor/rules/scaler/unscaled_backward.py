"""scaler.unscaled_backward"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE

FIX = """\
scaler.scale(loss).backward()      # for every loss of the window"""


class UnscaledBackward(Rule):
    """One backward of a scaled window runs without ``scaler.scale``.

    **What it sees**

    Some micro-batches of the window start from a scaled loss, others from a plain one.

    **Why it matters**

    ``unscale_`` divides all gradients by the scale: the micro-batch that was not multiplied weighs
    tens of thousands of times less than the others, and its tokens are thrown away in effect.

    **What to do**

    Scale every loss of the window: ``scaler.scale(loss).backward()``.

    **When it is silent**

    No micro-batch, or every one, is scaled.

    **Incidents**

    hpcaitech/ColossalAI#1218
    """

    inhibits = ("reduction.*", "norm.*")

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """Scaled and plain backwards in one window that the scaler steps."""
        record = window.facts.record
        kept = window.facts.applied
        plain = [index for index, m in kept if m.scale is None]
        if not plain or len(plain) == len(kept):
            return OK
        if not record.skipped and not window.facts.own_calls("scaler_step"):
            return OK
        scale = window.facts.scale
        return finding(
            "error",
            "A backward of a scaled window is not scaled",
            f"{len(plain)} of {len(kept)} micro-batches run backward from a loss that is not "
            f"multiplied by the scale of {scale:,.6g}: their gradients weigh that much too little.",
            FIX,
            micro_batches=[index + 1 for index in plain],
            scale=scale,
        )
