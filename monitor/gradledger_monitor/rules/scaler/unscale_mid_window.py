"""scaler.unscale_mid_window"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import UNSTABLE
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE

FIX = """\
for loss in window:
    scaler.scale(loss).backward()
scaler.unscale_(optimizer)      # once, after the last backward"""


class UnscaleMidWindow(Rule):
    """A backward follows ``unscale_`` in the same window.

    **What it sees**

    ``scaler.unscale_(optimizer)`` is called before the last micro-batch of the window.

    **Why it matters**

    Later micro-batches add scaled gradients to unscaled ones. They outweigh the earlier ones by
    the loss scale, and nothing unscales them.

    **What to do**

    Unscale once, after the last backward and before clipping.

    **When it is silent**

    ``unscale_`` runs after the last backward of the window.

    **Incidents**

    microsoft/Swin-Transformer#311, huggingface/transformers#24840
    """

    points_at = ("unscale",)
    inhibits = ("reduction.balance_off", "reduction.wrong_denominator", *UNSTABLE)

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """An unscale between two backwards of the window."""
        record, start = window.facts.record, window.facts.applied_from
        total = len(record.micro_batches)
        early = [e.after for e in window.facts.own_calls("unscale") if start < e.after < total]
        if not early:
            return OK
        return finding(
            "error",
            "Gradients are unscaled before the last backward",
            f"GradScaler.unscale_ ran after micro-batch {early[0]} of {total}. Gradients of later "
            "micro-batches are still scaled when they are added.",
            FIX,
            unscale_after=early[:16],
            micro_batches=total,
        )
