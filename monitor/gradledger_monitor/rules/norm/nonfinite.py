"""norm.nonfinite"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.circumstances import Onset
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, error_if_nonfinite=True)"""
FIX_OF_SCALER = """\
scaler.unscale_(optimizer)
scaler.step(optimizer)      # not optimizer.step(): it skips steps with non-finite gradients
scaler.update()"""

BYPASSED = (
    " The loop called GradScaler.unscale_, but not GradScaler.step, which skips a step whose "
    "gradients were not finite when they were unscaled."
)


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
    returns. After ``GradScaler.unscale_``, step with ``scaler.step(optimizer)``.

    **When it is silent**

    The ``GradScaler`` found the overflow and skipped the step.

    **Incidents**

    dbolya/yolact#359, karpathy/nanochat#775
    """

    points_at = ("backward", "loss")
    state = declare(_onset=Onset)
    works_on_metric_logs = True
    # norms that left their range before are no symptom: they show how it came to this
    inhibits_later = (
        "ddp.replica_drift",
        "loss.nonfinite",
        "loss.diverging",
        "norm.spike",
        "norm.exploding",
        "norm.vanishing",
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._onset = Onset()  # the first such step

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
        if not self._onset.step:
            self._onset.note(window)
        text = "NaN" if math.isnan(norm) else str(norm)
        calls = window.facts.own_calls
        by_optimizer = bool(calls("unscale")) and not calls("scaler_step")
        return finding(
            "error",
            "A non-finite gradient is applied",
            f"The gradient norm is {text} at step {window.facts.step:,}, and the step was not "
            f"skipped.{BYPASSED if by_optimizer else ''}{self._onset.text}",
            FIX_OF_SCALER if by_optimizer else FIX,
            norm=str(norm),
            parameters=record.nonfinite,
            **self._onset.evidence,
        )
