"""norm.spike"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.norm.trend import LogTrend
from gradledger_monitor.rules.rule import OK, Rule, Window, counted, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"""


LOSS_UP = 1.2  # times its moving average: a loss below that has not jumped


class Spike(Rule):
    """The gradient norm jumps far out of its range.

    **What it sees**

    The logarithm of the norm is more than 4 standard deviations above its exponential moving
    average (0.97 of it from the past), and the norm is more than 3 times that average. It is
    reported if the norm does not return within 10 steps, or if the loss jumps with it and stays
    up for 3 more steps. A jump of norm and loss to more than 30 times the average norm is
    reported at once. The rule needs 50 steps.

    **Why it matters**

    A spike that moves the loss costs many steps of recovery, and can end in divergence.

    **What to do**

    Inspect the data of the step, clip by norm, or lengthen the warm-up.

    **When it is silent**

    Warm-up; spikes that end within 10 steps and leave the loss where it was, such as from one
    batch of heavy-tailed data.

    **Incidents**

    huggingface/trl#3231
    """

    points_at = ("backward",)
    z = Parameter(4.0, "standard deviations of the logarithm of the norm")
    least = Parameter(3.0, "times the moving average from which a norm is out of range")
    steps = Parameter(10, "steps within which a norm must return to its range")
    stays = Parameter(3, "steps for which the loss must stay up after the jump")
    extreme = Parameter(30.0, "times the moving average that is reported at once")
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
        self._loss_up = 0  # steps in a row after a jump with the loss out of its range
        self._jump = (0.0, 0.0)  # the largest norm of the jump, and its ratio to the average

    def evaluate(self, window: Window) -> Outcome:
        """Out of range for several steps, or together with the loss."""
        facts = window.facts
        norm, loss = facts.norm, facts.loss_reported
        if facts.record.skipped or norm is None or not math.isfinite(norm) or norm <= 0:
            return not_measured("no finite gradient norm")
        if self._norm.count < self.needed:
            self._take(norm, loss)
            return not_measured(f"needs {counted(self.needed, 'step')}")
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
            f"The gradient norm {'reached' if moved else 'is'} {norm:.4g}, {ratio:.1f} times its "
            f"moving average, {self._consequence(moved)}.",
            FIX,
            norm=norm,
            ratio=round(ratio, 4),
            steps_high=self._high,
            loss=loss,
        )

    def _consequence(self, moved: bool) -> str:
        if moved:
            return "and the loss jumped with it"
        return f"and has been out of its range for {counted(self._high, 'step')}"

    def _moved(self, out: bool, norm: float, loss: float | None) -> bool:
        """Whether the loss jumped with the norm, by far or for several steps."""
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
        """Whether the loss is above its range, too."""
        if loss is None or self._loss.count < self.needed:
            return False
        if not math.isfinite(loss):
            return True
        return loss > 0 and self._loss.z(loss) > self.z and self._loss.ratio(loss) > LOSS_UP
