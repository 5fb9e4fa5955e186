"""scaler.collapse"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.ingest.schema import Number
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, counted, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE
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

    state = declare(_first=float | None, _skipped=int, _nan=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._first: float | None = None
        self._skipped = 0  # recorded steps that the scaler skipped
        self._nan = 0  # of those, with a NaN loss

    def evaluate(self, window: Window) -> Outcome:
        """The scale of the window's last backward."""
        self._count_skip(window.facts)
        scale = window.facts.scale
        if scale is None or math.isnan(scale):
            return OK
        self._first = self._first or scale
        if scale >= self.warning or scale > self._first / 4:
            return OK
        return finding(
            "error" if scale <= self.error else "warning",
            f"The loss scale has collapsed to {scale:.3g}",
            f"The loss scale fell from {significant(self._first)} to {scale:.3g}. A GradScaler "
            f"lowers its scale when gradients are not finite.{self._origin()} At this scale, small "
            "fp16 gradients become zero.",
            FIX,
            scale=scale,
            first_scale=self._first,
            skipped=self._skipped,
            skipped_with_nan_loss=self._nan,
        )

    def _count_skip(self, facts: StepFacts) -> None:
        if not facts.record.skipped:
            return
        self._skipped += 1
        applied = (m for of_rank in facts.applied_by_rank.values() for _, m in of_rank)
        self._nan += any(_is_nan(m.loss) for m in applied)

    def _origin(self) -> str:
        """Whether the loss itself was NaN: no scale makes such a loss finite."""
        if not self._nan:
            return ""
        return (
            f" The loss was NaN at {self._nan:,} of {counted(self._skipped, 'skipped step')}"
            ", which no loss scale changes: the cause is in the loss or the data."
        )


def _is_nan(loss: Number | None) -> bool:
    value = number(loss)
    return value is not None and math.isnan(value)
