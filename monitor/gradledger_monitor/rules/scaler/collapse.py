"""scaler.collapse"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE
from gradledger_monitor.rules.state import declare

FIX = """\
# a mean over a mask that may be empty:
loss = (token_loss * mask).sum() / mask.sum().clamp(min=1)"""


class Collapse(Rule):
    """The loss scale collapses.

    **What it sees**

    The scale has fallen below 1 (an error at 2^-5 and below), from a first scale at least four
    times as large.

    **Why it matters**

    The scale exists to lift small fp16 gradients above zero. Below 1 it pushes them down: they are
    flushed to zero, and the model stops learning while the loss is still printed.

    **What to do**

    The scale falls because gradients are not finite again and again: look for the micro-batch that
    makes NaN (a mean over an empty mask is 0/0), not at the scaler.

    **When it is silent**

    The first halvings of a fresh scaler; a scaler that was given a small initial scale.

    **Incidents**

    dbolya/yolact#359, NVIDIA/apex#715, deepspeedai/DeepSpeed#697
    """

    warning = Parameter(1.0, "scale below which it is a warning")
    error = Parameter(0.03125, "scale at or below which it is an error")

    kind = "T"
    works_on_metric_logs = True

    inhibits = (
        "scaler.skipped_steps",
        "scaler.all_grads_zero",
        "norm.*",
        "scheduler.stepped_on_skip",
    )

    precondition = SCALER_IN_USE

    state = declare(_first=float | None)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._first: float | None = None

    def evaluate(self, window: Window) -> Outcome:
        """The scale of the window's last backward."""
        scale = window.facts.scale
        if scale is None or math.isnan(scale):
            return OK
        self._first = self._first or scale
        if scale >= self.warning or scale > self._first / 4:
            return OK
        return finding(
            "error" if scale <= self.error else "warning",
            f"The loss scale has collapsed to {scale:.3g}",
            f"The GradScaler has halved its scale from {self._first:,.6g} to {scale:.3g} because "
            "gradients are not finite again and again; small gradients are now flushed to zero.",
            FIX,
            scale=scale,
            first_scale=self._first,
        )
