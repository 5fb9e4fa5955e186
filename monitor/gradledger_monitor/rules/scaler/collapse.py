"""scaler.collapse"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.circumstances import Onset
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE, has_nan_loss
from gradledger_monitor.rules.state import declare

FIX = """\
# if the mask may be empty:
loss = (token_loss * mask).sum() / mask.sum().clamp(min=1)"""


class Collapse(Rule):
    """The loss scale collapses.

    **What it sees**

    The scale is below 1 (an error at 2^-5 and below), and at most a quarter of the first
    recorded scale.

    **Why it matters**

    The loss scale exists to lift small fp16 gradients above zero. Below 1 it makes them
    smaller: they become zero, and the model stops learning while the loss is still reported.

    **What to do**

    A ``GradScaler`` lowers its scale when gradients are not finite. Look for the micro-batch
    that causes NaN (a mean over an empty mask is 0/0), not at the scaler.

    **When it is silent**

    The first reductions of a new scaler; a scaler with a small initial scale.

    **Incidents**

    dbolya/yolact#359, NVIDIA/apex#715, deepspeedai/DeepSpeed#697
    """

    points_at = ("update", "scaler_step")
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

    state = declare(_first=float | None, _skipped=int, _nan=int, _onset=Onset)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._first: float | None = None
        self._skipped = 0  # recorded steps that the scaler skipped
        self._nan = 0  # of those, with a NaN loss
        self._onset = Onset()  # the first of those

    def evaluate(self, window: Window) -> Outcome:
        """The scale of the window's last backward."""
        self._count_skip(window)
        scale = window.facts.scale
        if scale is None or math.isnan(scale):
            return OK
        self._first = self._first or scale
        if scale >= self.warning or scale > self._first / 4:
            return OK
        return finding(
            "error" if scale <= self.error else "warning",
            f"The loss scale has collapsed to {significant(scale)}",
            f"The loss scale fell from {significant(self._first)} to {significant(scale)}. A "
            f"GradScaler lowers its scale when gradients are not finite.{self._origin()} At this "
            "scale, small fp16 gradients become zero.",
            FIX,
            scale=scale,
            first_scale=self._first,
            skipped=self._skipped,
            skipped_with_nan_loss=self._nan,
            **self._onset.evidence,
        )

    def _count_skip(self, window: Window) -> None:
        if not window.facts.record.skipped:
            return
        self._skipped += 1
        if has_nan_loss(window.facts):
            self._nan += 1
            if self._nan == 1:
                self._onset.note(window)

    def _origin(self) -> str:
        """Whether the loss itself was NaN: no scale makes such a loss finite."""
        if not self._nan:
            return ""
        return (
            f" The loss was NaN at {self._nan:,} of {counted(self._skipped, 'skipped step')}"
            ", which no loss scale changes: the cause is in the loss or the data."
            f"{self._onset.text}"
        )
