"""norm.spike"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.norm.trend import LogTrend
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"""


class Spike(Rule):
    """The gradient norm jumps far out of its range.

    **What it sees**

    The logarithm of the norm lies more than 4 standard deviations above its moving average
    (weight of the past 0.97), at least 3 times the mean, and either does not come back within
    10 steps, or takes the loss along, which then stays up for 3 steps more. A jump of norm and
    loss to more than 30 times the mean norm is told at once. Needs 50 steps.

    **Why it matters**

    A spike that moves the loss costs many steps of recovery, and may end in divergence.

    **What to do**

    Look at the data of the step; clip by norm; lengthen the warm-up.

    **When it is silent**

    Warm-up; spikes that are gone after 10 steps and leave the loss where it was, as one batch of
    heavy-tailed data does.

    **Incidents**

    huggingface/trl#3231
    """

    z = Parameter(4.0, "standard deviations of log norm")
    least = Parameter(3.0, "times the moving average")
    steps = Parameter(10, "steps after which a spike has not come back")
    stays = Parameter(3, "steps for which the loss must stay up after the jump")
    extreme = Parameter(30.0, "times the moving average that is told at once")
    needed = Parameter(50, "steps of history")

    kind = "T"
    works_on_metric_logs = True

    state = declare(
        _norm=LogTrend,
        _loss=LogTrend,
        _high=int,
        _loss_up=int,
        _jump=tuple[float, float],
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._norm, self._loss = LogTrend(), LogTrend()
        self._high = 0
        self._loss_up = 0  # steps since a jump for which the loss has been out of its range
        self._jump = (0.0, 0.0)  # the norm then, and its ratio

    def evaluate(self, window: Window) -> Outcome:
        """Out of range for long, or together with the loss."""
        facts = window.facts
        norm, loss = facts.norm, facts.loss_reported
        if facts.record.skipped or norm is None or not math.isfinite(norm) or norm <= 0:
            return not_measured("no finite gradient norm")
        if self._norm.count < self.needed:
            self._take(norm, loss)
            return not_measured(f"{self.needed} steps are needed")
        out = self._norm.z(norm) > self.z and self._norm.ratio(norm) > self.least
        self._high = self._high + 1 if out else 0
        moved = self._moved(out, norm, loss)
        if not out:
            self._take(norm, loss)
        if not moved and self._high <= self.steps:
            return OK
        norm, ratio = self._jump if moved else (norm, self._norm.ratio(norm))
        return finding(
            "warning",
            "The gradient norm spikes",
            f"The norm is {norm:.4g}, {ratio:.1f} times its moving average"
            + (", and the loss jumps with it." if moved else f", for {self._high} steps now."),
            FIX,
            norm=norm,
            ratio=round(ratio, 4),
            steps_high=self._high,
            loss=loss,
        )

    def _moved(self, out: bool, norm: float, loss: float | None) -> bool:
        """Whether a jump of the norm took the loss along, far or for long."""
        up = (out or self._loss_up > 0) and self._loss_is_up(loss)
        self._loss_up = self._loss_up + 1 if up else 0
        if not up:
            return False
        ratio = self._norm.ratio(norm)
        if self._loss_up == 1 or ratio > self._jump[1]:
            self._jump = (norm, ratio)
        return self._loss_up > self.stays or (out and ratio > self.extreme)

    def _take(self, norm: float, loss: float | None) -> None:
        self._norm.add(norm)
        if loss is not None and math.isfinite(loss) and loss > 0:
            self._loss.add(loss)

    def _loss_is_up(self, loss: float | None) -> bool:
        """Whether the loss has left its range as well."""
        if loss is None or self._loss.count < self.needed:
            return False
        if not math.isfinite(loss):
            return True
        return loss > 0 and self._loss.z(loss) > self.z and self._loss.ratio(loss) > 1.2
