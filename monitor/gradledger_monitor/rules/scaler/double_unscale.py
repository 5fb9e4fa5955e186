"""scaler.double_unscale"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import SMALL_STEPS, UNSTABLE
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE, residual

FIX = """\
scaler.unscale_(optimizer)      # once: do not divide .grad by the scale, too
scaler.step(optimizer)
scaler.update()"""


class DoubleUnscale(Rule):
    """The gradients are divided by the loss scale twice.

    **What it sees**

    The gradient sample shrinks by the square of the scale between the last backward and the
    step.

    **Why it matters**

    The update is tens of thousands of times too small: with SGD the model does not learn, and
    fp16 gradients underflow.

    **What to do**

    Unscale once: call ``GradScaler.unscale_``, or divide the gradients yourself.

    **When it is silent**

    The sample was not taken, or shows one division.

    **Incidents**

    NVIDIA/apex#1512, THUDM/slime#1842
    """

    points_at = ("unscale", "scaler_step", "step")
    # a balance of 1/scale is no division by K, nor one for an accumulation over as many
    inhibits = (
        *("reduction.balance_off", "reduction.double_division", "reduction.wrong_denominator"),
        *("loop.step_every_microbatch", *UNSTABLE, *SMALL_STEPS),
    )

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """The factor of the scale in the applied gradients is 1/scale."""
        record = window.facts.record
        left, scale = residual(window.facts), window.facts.scale or 1.0
        if record.skipped:
            return OK
        if left is None:
            return not_measured(record.missing.get("post_factor", "no gradient sample"))
        if scale < 4 or not 0.98 < left * scale < 1.02:
            return OK
        return finding(
            "error",
            "Gradients are divided by the loss scale twice",
            "Between the last backward and the step, the gradients shrank by the square of the "
            f"loss scale of {significant(scale)}: they are {significant(scale)} times too small.",
            FIX,
            scale=scale,
            factor=left,
        )
