"""scaler.step_bypassed"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.gradient_scale_effects import constant_factor_effect
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE, residual

FIX = """\
scaler.step(optimizer)      # not optimizer.step()
scaler.update()"""


class StepBypassed(Rule):
    """The optimizer steps on gradients that are still multiplied by the loss scale.

    **What it sees**

    The loss was scaled, but ``optimizer.step()`` was called directly, and the gradient sample
    shows that nothing unscaled the gradients before it.

    **Why it matters**

    The gradients are too large by the loss scale, 65,536 at the start. Nothing checks them for
    overflow, and the scale does not adapt. SGD usually diverges. Adam cancels the factor and
    the loss still falls, but epsilon and clipping thresholds no longer have their meaning.

    **What to do**

    Step through the scaler: ``scaler.step(optimizer)``, then ``scaler.update()``.

    **When it is silent**

    The gradients were unscaled by ``GradScaler.unscale_`` or by hand; the scaler is disabled; a
    fused optimizer unscales inside its kernel.

    **Incidents**

    IAHispano/Applio#860
    """

    points_at = ("step",)
    inhibits = (
        *("reduction.balance_off", "reduction.wrong_denominator", "scaler.*"),
        *("norm.*", "loss.*"),
    )

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """No scaler step in the window, and the gradients still carry the scale."""
        record = window.facts.record
        if record.skipped or window.facts.own_calls("scaler_step"):
            return OK
        left = residual(window.facts)
        if left is None:
            return not_measured(record.missing.get("post_factor", "no gradient sample"))
        if left < 2:
            return OK
        return finding(
            "error",
            "The optimizer steps on scaled gradients",
            f"optimizer.step() ran without GradScaler.step on gradients that still carry a factor "
            f"of {significant(left)} from the loss scale, so they are that much too large. "
            f"{constant_factor_effect(left, window.facts)}.",
            FIX,
            factor=left,
            scale=window.facts.scale,
        )
