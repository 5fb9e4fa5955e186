"""scaler.all_grads_zero"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE

FIX = """\
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
# or, where the hardware has it, no scaler at all:
with torch.autocast("cuda", dtype=torch.bfloat16): ..."""


class AllGradsZero(Rule):
    """All scaled gradients are zero while the loss is not.

    **What it sees**

    The norm of the gradients is exactly 0 in a scaled window whose tokens and weights are not.

    **Why it matters**

    fp16 gradients below 6e-8 are flushed to zero. The step does nothing, and no overflow is
    found, so the scaler sees nothing wrong.

    **What to do**

    Raise the scale (a larger ``init_scale``), keep the loss in fp32, or use bf16.

    **When it is silent**

    Micro-batches without any token; gradients zeroed by the loop (another rule); frozen
    parameters.

    **Incidents**

    Lightning-AI/pytorch-lightning#9330 (its symptom)
    """

    inhibits = ("norm.vanishing",)

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """A norm of 0 under weights that are not 0."""
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
            f"Backward runs with a scale of {facts.scale:.3g} and every "
            "gradient is exactly zero: fp16 has flushed them.",
            FIX,
            norm=0.0,
            scale=facts.scale,
            zero_share=number(record.zero_share),
        )
