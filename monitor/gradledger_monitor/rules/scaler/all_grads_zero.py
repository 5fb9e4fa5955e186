"""scaler.all_grads_zero"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE

FIX = """\
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
# or, if the hardware supports bf16, use it without a scaler:
with torch.autocast("cuda", dtype=torch.bfloat16): ..."""


class AllGradsZero(Rule):
    """All scaled gradients are zero while the loss is not.

    **What it sees**

    The norm of the gradients is exactly 0 in a scaled window whose tokens have non-zero
    weights.

    **Why it matters**

    The smallest fp16 value is 6e-8 (2^-24), so gradients far below it become zero. The step
    then applies no gradient, and because there is no overflow, the scaler does not react.

    **What to do**

    Raise the scale (a larger ``init_scale``), compute the loss in fp32, or use bf16.

    **When it is silent**

    Micro-batches without any token; gradients that the loop zeroed (another rule).

    **Incidents**

    Lightning-AI/pytorch-lightning#9330 (a symptom)
    """

    points_at = ("scaler_step", "step")
    inhibits = ("norm.vanishing",)

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """A norm of 0 with token weights that are not 0."""
        facts = window.facts
        record = facts.record
        norm = number(record.norm)
        if norm is None:
            return not_measured(record.missing.get("norm", "no gradient norm"))
        if norm != 0 or record.skipped or record.post_factor == 0:
            return OK
        if not any(s.weight for s in facts.terms):
            return OK
        return finding(
            "error",
            "All gradients are zero",
            f"Backward ran with a loss scale of {significant(facts.scale or 0.0)}, and the "
            "gradient norm is exactly 0, although the token weights are not. In fp16, gradients "
            "that are too small become zero.",
            FIX,
            norm=0.0,
            scale=facts.scale,
            zero_share=number(record.zero_share),
        )
