"""norm.spike"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.circumstances import Onset
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.loss.common import OPPOSED, may_be_opposed
from gradledger_monitor.rules.norm.loss_weights import LossWeights
from gradledger_monitor.rules.norm.trend import FarthestValues, LogTrend
from gradledger_monitor.rules.number_text import counted, significant, times
from gradledger_monitor.rules.rule import (
    OK,
    Rule,
    Window,
    about_steps,
    finding,
    not_measured,
    passed,
)
from gradledger_monitor.rules.schedule.rates import learning_rates
from gradledger_monitor.rules.state import declare

FIX = """\
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"""


TAIL = 200  # steps from which a run's own norms show how far its batches reach
LONG = 1000  # steps from which that is enough; before, such a tail may be of too few values
# of a healthy run with a jump beyond the reach of those before: in one batch, and one after which
# the loss must stay up, too, which a jump of one batch rarely shows
CHANCE, CHANCE_IF_IT_STAYS = 0.01, 0.1
LOSS_UP = 1.2  # times its moving average: a loss below that has not jumped
BACK = 0.7  # of the loss at a jump: if the next one is below, it was that batch alone
FALLS = 0.95  # of the loss at a jump: a loss below falls again
MOST_MARKED = 64  # spikes whose steps are in the evidence
MOST_OUTLIERS = 256  # micro-batches that are remembered
LEAST_LOSS = 1.0  # with a short history, a smaller loss has not jumped: many losses start near 0


class Spike(Rule):
    """The gradient norm jumps far out of its range.

    **What it sees**

    From 50 steps on: the logarithm of the norm is more than 4 standard deviations above its
    exponential moving average (0.97 of it from the past), and the norm is more than 3 times that
    average. It is reported if the norm does not return within 10 steps, or if the loss jumps
    with it, stays up for 3 more steps and does not fall.

    A jump of norm and loss in one batch is reported if the next loss is below 70% of that of the
    jump, and if the norm is more than 30 times its average: times the root of steps / 50, up to
    1,000 steps.

    From 200 steps on, a jump with the loss must also be farther than the run's own norms reach, in
    standard deviations: in one batch, above the largest so far times (100 * ln(steps)) ** r. Here r
    is the Hill estimate of their tail, the mean logarithm of the 16 largest over the smallest of
    them (B. Hill, 1975). About ln(steps) norms of a run are larger than all before them, and each
    is this far above them with a chance of 1 in 100 * ln(steps): in 1 of 100 healthy runs. If the
    loss stays up, (10 * ln(steps)) ** r is enough. Norms less than 1 standard deviation above the
    average do not count: where the norms fall, few are above it.

    From 8 steps on: the norm is above 10 times the largest one so far, times the root of
    50 / steps, and the loss is above 3 times the largest so far (or 1). The shorter the history,
    the farther the jump must be: 25 times after 8 steps.

    How often healthy runs are reported is measured, for 60 and 10,000 steps, in
    `docs/detection.md`.

    **Why it matters**

    A spike that moves the loss costs many steps of recovery, and can end in divergence.

    **What to do**

    Inspect the data of the step, clip by norm, or lengthen the warm-up.

    **When it is silent**

    Warm-up; spikes that end within 10 steps and leave the loss where it was, such as from one
    batch of heavy-tailed data: they are counted, and the decision tree states them (one that was
    more than 30 times the average is information, so that the chart marks it). A loss that
    jumps and falls from there, step by step, as it does on new data or a new task. For 50 steps
    after a parameter group was added, such as of a backbone that is unfrozen, or a constant that
    multiplies a loss was raised, by as much as the norm rose.
    Several optimizers that train on different losses (a GAN).

    **Incidents**

    huggingface/trl#3231
    """

    points_at = ("backward",)
    z = Parameter(4.0, "standard deviations of the logarithm of the norm")
    least = Parameter(3.0, "times the moving average from which a norm is out of range")
    steps = Parameter(10, "steps within which a norm must return to its range")
    stays = Parameter(3, "steps for which the loss must stay up after the jump")
    extreme = Parameter(30.0, "times the moving average that is reported after one step, early")
    needed = Parameter(50, "steps of history")
    short = Parameter(8, "steps of history for a jump above everything so far")
    short_norm = Parameter(10.0, "times the largest norm so far, after ``needed`` steps")
    short_loss = Parameter(3.0, "times the largest loss so far")

    kind = "T"
    works_on_metric_logs = True

    state = declare(
        _norm=LogTrend,
        _loss=LogTrend,
        _reached=FarthestValues,
        _groups=int,
        _weights=LossWeights,
        _high=int,
        _loss_up=int,
        _jump=tuple[float, float],
        _largest=tuple[float, float],
        _jump_loss=float,
        _beyond=bool,
        _far=bool,
        _onset=Onset,
        _reported=bool,
        _outliers=dict[str, int],
        _count=int,
        _spikes=int,
        _spikes_at=list[int],
        _farthest=tuple[float, int],
        _last_spike=tuple[float, float],
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._norm, self._loss = LogTrend(), LogTrend()
        self._reached = FarthestValues()  # of the norms, in standard deviations
        self._groups = 0  # parameter groups, whose norm it is
        self._weights = LossWeights()
        self._high = 0
        self._loss_up = 0  # steps in a row after a jump with the loss out of its range
        self._jump = (0.0, 0.0)  # the largest norm of the jump, and its ratio to the average
        self._largest = (0.0, 0.0)  # norm and loss of the first steps
        self._jump_loss = 0.0  # the loss at the jump
        self._beyond = False  # the jump was farther than the run's own norms reach
        self._far = False  # and far enough to be reported after one batch
        self._onset = Onset()  # the last jump, and what changed there
        self._reported = False  # a jump that did not end by itself
        self._outliers: dict[str, int] = {}  # steps of micro-batches that stood out, by their data
        self._count = 0  # steps with a norm
        self._spikes = 0  # jumps of the norm, also those that are not reported
        self._spikes_at: list[int] = []  # the steps of the last of them
        self._farthest = (0.0, 0)  # the largest ratio of one of them, and its step
        self._last_spike = (0.0, 0.0)  # norm and ratio at the beginning of the last one

    def account(self) -> str:
        """How many jumps of the norm there were; most are not reported."""
        steps = counted(self._count, "recorded step")
        if not self._spikes and self._count <= self.needed:
            return (
                f"no jump far above all norms before, in {steps}; a smaller one needs "
                f"{counted(self.needed, 'step')} of history"
            )
        if not self._spikes:
            return f"no spike in {steps}"
        ratio, step = self._farthest
        what = "" if self._spikes == 1 else "the largest "
        after = "not recovered" if self._high else "recovered"
        return f"{counted(self._spikes, 'spike')}, {what}{ratio:.3g}x at step {step:,}, {after}"

    def evaluate(self, window: Window) -> Outcome:
        """Out of range for several steps, or together with the loss."""
        facts = window.facts
        norm, loss = facts.norm, facts.loss_reported
        if facts.record.skipped or norm is None or not math.isfinite(norm) or norm <= 0:
            return not_measured("no finite gradient norm")
        if may_be_opposed(facts):
            return OPPOSED
        self._count += 1
        groups = len(learning_rates(facts.record))
        if self._weights.rise(facts, norm) > 1 or groups != self._groups:
            self._groups = groups
            self._begin_anew()
        if self._norm.count < self.needed:
            return self._evaluate_short(window, norm, loss)
        out = self._norm.z(norm) > self.z and self._norm.ratio(norm) > self.least
        ended, self._high = self._high and not out, self._high + 1 if out else 0
        if self._high == 1:
            self._note_spike(window, norm, self._norm.ratio(norm))
        moved = self._moved(out, norm, loss)
        self._reached.add(self._norm.z(norm))
        if not out:
            self._take(norm, loss)
        if not moved and (self._high <= self.steps or self._loss_falls(loss)):
            return self._recovered() if ended else OK
        self._reported = True
        norm, ratio = self._jump if moved else (norm, self._norm.ratio(norm))
        report = finding(
            "warning",
            "The gradient norm spikes",
            f"The gradient norm {'reached' if moved else 'is'} {significant(norm)}, {times(ratio)} "
            f"its moving average, {self._consequence(moved)}.{self._onset.text}{self._again()}",
            FIX,
            norm=norm,
            ratio=round(ratio, 4),
            steps_high=self._high,
            loss=self._jump_loss if moved else loss,
            spikes_at=self._spikes_at,
            **self._onset.evidence,
        )
        if moved and self._loss_up <= self.stays:  # one batch: the loss was up there alone
            return about_steps(report, (self._onset.step,))
        return report

    def _begin_anew(self) -> None:
        """The norm is of other parameters or a larger loss, as after a backbone was unfrozen."""
        self._norm, self._high, self._loss_up = LogTrend(), 0, 0
        self._largest = (0.0, self._largest[1])

    def _recovered(self) -> Outcome:
        """The norm is back in its range, and the loss did not stay up: information, if it was far.

        Not after a jump that was reported: that remains the finding.
        """
        norm, ratio = self._last_spike
        if self._reported or ratio <= self.extreme:
            return OK
        count = f" There were {self.account()}." if self._spikes > 1 else ""
        report = finding(
            "info",
            "The gradient norm spiked and recovered",
            f"The gradient norm reached {significant(norm)} at step {self._onset.step:,}, "
            f"{times(ratio)} its moving average, and came back by itself.{count}"
            f"{self._onset.text}{self._again()}",
            FIX,
            norm=norm,
            ratio=round(ratio, 4),
            spikes=self._spikes,
            spikes_at=self._spikes_at,
            **self._onset.evidence,
        )
        return passed(about_steps(report, (self._onset.step,)))

    def _note_spike(self, window: Window, norm: float, ratio: float) -> None:
        self._spikes += 1
        self._spikes_at = [*self._spikes_at[1 - MOST_MARKED :], window.facts.step]
        self._last_spike = (norm, ratio)
        if ratio > self._farthest[0]:
            self._farthest = (ratio, window.facts.step)
        self._onset.note(window)
        data = self._data()
        if data and len(self._outliers) < MOST_OUTLIERS:
            self._outliers.setdefault(data, window.facts.step)

    def _data(self) -> str:
        """The micro-batch that stood out at the last jump, as a fingerprint; "" if none did."""
        outlier = self._onset.changed.get("micro_batch") or {}
        fingerprint = outlier.get("fingerprint")
        return "" if fingerprint is None else f"{fingerprint:.9g}"

    def _again(self) -> str:
        """Whether the same data stood out before."""
        first = self._outliers.get(self._data())
        if first is None or first == self._onset.step:
            return ""
        return f" The same data stood out at step {first:,}."

    # ------------------------------------------------------------ with a short history

    def _evaluate_short(self, window: Window, norm: float, loss: float | None) -> Outcome:
        """A jump of norm and loss far above everything so far."""
        history, (largest, largest_loss) = self._norm.count, self._largest
        factor = self.short_norm * math.sqrt(self.needed / max(history, 1))
        far_up = loss is not None and not loss <= self.short_loss * max(LEAST_LOSS, largest_loss)
        if history < self.short or norm <= factor * largest or not far_up:
            self._take(norm, loss)
            self._largest = (max(largest, norm), max(largest_loss, _finite(loss)))
            self._high = 0
            needed = counted(self.short, "step")
            return OK if history >= self.short else not_measured(f"needs {needed} of history")
        self._high += 1
        ratio = norm / largest
        self._reported = True
        if self._high == 1:
            self._note_spike(window, norm, ratio)
        return finding(
            "warning",
            "The gradient norm spikes",
            f"The gradient norm is {significant(norm)}, {significant(ratio)} times the largest of "
            f"the {counted(history, 'step')} before, and the loss is {significant(loss or 0.0)}, "
            f"where it was at most {significant(largest_loss)}.{self._onset.text}",
            FIX,
            norm=norm,
            ratio=round(ratio, 4),
            loss=loss,
            history=history,
            spikes_at=self._spikes_at,
            **self._onset.evidence,
        )

    # ------------------------------------------------------------ with the loss

    def _consequence(self, moved: bool) -> str:
        if moved:
            return "and the loss jumped with it"
        return f"and has been out of its range for {counted(self._high, 'step')}"

    def _moved(self, out: bool, norm: float, loss: float | None) -> bool:
        """Whether the loss jumped with the norm: far in one batch, or for several steps."""
        up = (out or self._loss_up > 0) and self._loss_is_up(loss)
        ends = not up or _finite(loss) < BACK * self._jump_loss
        one_batch = self._loss_up == 1 and self._far and ends
        self._loss_up = self._loss_up + 1 if up else 0
        if not up:
            return one_batch
        ratio = self._norm.ratio(norm)
        if self._loss_up == 1:
            self._jump_loss = _finite(loss)
            z, least = self._norm.z(norm), self._least_of_one_batch()
            self._beyond = z > self._reach(CHANCE_IF_IT_STAYS)
            self._far = z > self._reach(CHANCE) and ratio > least
        if self._loss_up == 1 or ratio > self._jump[1]:
            self._jump = (norm, ratio)
        if out and ratio > self.extreme and not math.isfinite(loss or 0.0):
            return True
        stays = self._beyond and self._loss_up > self.stays and not self._loss_falls(loss)
        return one_batch or stays

    def _reach(self, chance: float) -> float:
        """Standard deviations that a batch of this run exceeds with this probability, at most."""
        return self._reached.reach(chance) if self._reached.count >= TAIL else 0.0

    def _least_of_one_batch(self) -> float:
        """Times the moving average above which a jump of one batch is reported."""
        if self._reached.count >= LONG:
            return self.extreme
        return self.extreme * math.sqrt(self._norm.count / self.needed)

    def _loss_falls(self, loss: float | None) -> bool:
        """Whether the loss is up since a jump, and falls from there, as it does on new data."""
        return self._loss_up > 0 and _finite(loss) < FALLS * self._jump_loss

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


def _finite(loss: float | None) -> float:
    return loss if loss is not None and math.isfinite(loss) else 0.0
