"""norm.nonfinite"""

from __future__ import annotations

import math

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured

FIX = """\
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, error_if_nonfinite=True)"""


class Nonfinite(Rule):
    """The optimizer applies a gradient that is not finite.

    **What it sees**

    The norm of the applied gradients is inf or NaN, and no ``GradScaler`` skipped the step.

    **Why it matters**

    One such step can make parameters NaN or infinite. The loop continues, but all later
    training is lost.

    **What to do**

    Restore the last checkpoint before this step. Look for an empty mask, a logarithm of zero,
    or a division by a count of zero. Guard the step with the norm that ``clip_grad_norm_``
    returns.

    **When it is silent**

    The ``GradScaler`` found the overflow and skipped the step.

    **Incidents**

    dbolya/yolact#359, karpathy/nanochat#775
    """

    points_at = ("backward", "loss")
    works_on_metric_logs = True
    inhibits = ("norm.spike", "norm.exploding", "norm.vanishing", "ddp.replica_drift")
    inhibits_later = ("loss.nonfinite", "loss.diverging")

    def evaluate(self, window: Window) -> Outcome:
        """A norm that is not finite, at a step that was applied."""
        record = window.facts.record
        norm = number(record.norm)
        if record.skipped:
            return OK
        if norm is None and record.nonfinite == 0:
            return OK  # an update by hand: the gradients after each backward were finite
        if norm is None:
            return not_measured(record.missing.get("norm", "no gradient norm at the step"))
        if math.isfinite(norm):
            return OK
        text = "NaN" if math.isnan(norm) else str(norm)
        return finding(
            "error",
            "A non-finite gradient is applied",
            f"The gradient norm at this step is {text}, and the step was not skipped.",
            FIX,
            norm=str(norm),
            parameters=record.nonfinite,
        )
