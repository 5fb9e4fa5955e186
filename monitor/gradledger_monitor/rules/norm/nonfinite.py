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

    The norm of the applied gradients is inf or NaN, and no GradScaler skipped the step.

    **Why it matters**

    One such step makes parameters NaN; everything after it is lost, though the loop goes on.

    **What to do**

    Go back to the last checkpoint before this step. Look for an empty mask, a log of zero, a
    division by a count of zero; guard the step with the norm that clipping returns.

    **When it is silent**

    The GradScaler found it and skipped.

    **Incidents**

    dbolya/yolact#359, karpathy/nanochat#775
    """

    works_on_metric_logs = True
    inhibits = ("norm.spike", "norm.exploding", "norm.vanishing", "ddp.replica_drift")

    def evaluate(self, window: Window) -> Outcome:
        """A norm that is not finite at a step that was taken."""
        record = window.facts.record
        norm = number(record.norm)
        if record.skipped:
            return OK
        if norm is None:
            return not_measured(record.missing.get("norm", "no gradients at the step"))
        if math.isfinite(norm):
            return OK
        return finding(
            "error",
            "A gradient that is not finite is applied",
            f"The gradient norm at the step is {norm}; the optimizer applies it all the same.",
            FIX,
            norm=str(norm),
            parameters=record.nonfinite,
        )
