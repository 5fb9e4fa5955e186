"""scaler.update_between_optimizers"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE

FIX = """\
scaler.step(first_optimizer)
scaler.step(second_optimizer)
scaler.update()                  # once, after all steps"""


class UpdateBetweenOptimizers(Rule):
    """``GradScaler.update()`` runs between the steps of two optimizers that share one backward.

    **What it sees**

    After the last backward, another optimizer is stepped through the scaler, then the scale is
    updated, then this optimizer is stepped, with no backward in between.

    **Why it matters**

    If the update changes the scale, the second optimizer is unscaled by a factor that its
    gradients were not multiplied by. An overflow that made the first optimizer skip its step is
    forgotten for the second.

    **What to do**

    Step all optimizers, then update once.

    **When it is silent**

    Each optimizer has a separate backward after the update (a GAN).

    **Incidents**

    huggingface/accelerate#439, Lightning-AI/pytorch-lightning#20116
    """

    points_at = ("update",)
    inhibits = ("reduction.balance_off",)  # of the windows in which the update changes the scale
    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """step(other), update, step(this), all after the last backward."""
        record = window.facts.record
        if all(event.own for event in window.facts.calls("scaler_step")):
            return OK
        total = len(record.micro_batches)
        calls = [e for e in record.events if e.after == total and e.op in ("scaler_step", "update")]
        order = ["other" if e.op == "scaler_step" and not e.own else e.op for e in calls]
        if "other" not in order or "update" not in order[order.index("other") :]:
            return OK
        return finding(
            "error",
            "The loss scale is updated between two optimizers",
            "After the last backward, another optimizer stepped, GradScaler.update() ran, and "
            "then this optimizer stepped. If the update changed the scale, its gradients are "
            "unscaled by the wrong factor.",
            FIX,
            calls=[*order],
        )
