"""scaler.update_per_microbatch"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE

FIX = """\
for loss in window:
    scaler.scale(loss).backward()
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()                  # once per window"""


class UpdatePerMicrobatch(Rule):
    """``scaler.update()`` runs inside the window, or the scale changes inside it.

    **What it sees**

    An update between two backwards of one window; or micro-batches of one window with different
    scales.

    **Why it matters**

    The window's gradients no longer share one scale. Together with ``unscale_`` on each
    micro-batch, which PyTorch refuses without it, the k-th of K micro-batches is divided by the
    scale K-k+1 times: only the last one counts.

    **What to do**

    ``unscale_``, ``step`` and ``update`` belong to the window's end, once.

    **When it is silent**

    The update follows the step, before the next backward.

    **Incidents**

    microsoft/Swin-Transformer#311, hiyouga/LlamaFactory#77, huggingface/accelerate#641
    """

    inhibits = (
        "reduction.*",
        "norm.*",
        "scaler.unscale_mid_window",
        "loop.zeroed_every_microbatch",
    )

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """An update, or a change of scale, between two backwards of the window."""
        record, start = window.facts.record, window.facts.applied_from
        total = len(record.micro_batches)
        inside = [e.after for e in window.facts.own_calls("update") if start < e.after < total]
        scales = {number(m.scale) for _, m in window.facts.applied if m.scale is not None}
        if not inside and len(scales) < 2:
            return OK
        return finding(
            "error",
            "The loss scale is updated inside the window",
            f"update() runs after micro-batch {inside[0]} of {total}."
            if inside
            else f"The micro-batches of one window are scaled by {sorted(scales, key=str)}.",
            FIX,
            update_after=inside[:16],
            scales=sorted(scales, key=str)[:16],
            micro_batches=total,
        )
