"""schedule.plateau_mode"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.schedule.plateau_calls import EQUAL, in_order, losses_of
from gradledger_monitor.rules.state import declare

MOST = 32  # calls that are compared
FALLS = 0.9  # of the first loss: the last one, of a training that learns
SHARE_MOVES = 0.1  # a share of counts, from the first to the last call
PERCENT = 100
STEADY = 0.7  # of the calls move as the first to the last
LARGEST_SET = 5_000  # examples of an evaluation whose share of counts is recognised
ROUNDED = 10_000  # a multiple of 1/10,000 may be a rounded loss
BFLOAT16 = 256  # a loss in bfloat16 below 1, and a mean of such, is a share of a multiple of this
HUNDREDTHS = 25  # a size with this factor: a percentage, or a mean of a few whole numbers
FLOAT32 = 2e-7  # what a quotient in float32 rounds
CLASSES = 3  # from which a model that guesses has an error rate of 2/3 or more
SMALL, LARGE = 1 / 3, 0.6  # an error rate does not rise so far while a model learns
GUESS = 0.7  # of the cross entropy of a model that guesses: above it, the model has learnt little
DISTINCT = 4  # values that show that all are multiples of one fraction

NONE = "no ReduceLROnPlateau that waits for fewer than 50 calls is known"

FIX = """\
# a loss or an error rate should fall
scheduler = ReduceLROnPlateau(optimizer, mode="min")
scheduler.step(validation_loss)
# an accuracy should rise
scheduler = ReduceLROnPlateau(optimizer, mode="max")
scheduler.step(accuracy)"""


class PlateauMode(Rule):
    """ReduceLROnPlateau takes a better metric for a worse one.

    **What it sees**

    The mode of the scheduler, and the metric at its first calls, 5 to 32, of which the first is the
    best in that mode:

    - the mode is ``max``, and the metric is the loss that the training minimises: that of the last
      micro-batch, or the mean or the sum of all since the call before. It fell. This is a warning;
    - the mode is ``min``, the default, the training loss fell, and the metric is a share of counts,
      such as an accuracy: all its values are multiples of one fraction. It rose by 0.1 or more, at
      70% of the calls. This is information: it may be an error rate that really rises. It is a
      warning if the training loss is one cross entropy of 3 classes or more, it was above 0.7
      times that of a model that guesses before the first call, and the metric rose from at most
      1/3 to 0.6 or more: a model that guesses has an error rate of 2/3 or more, and hardly reaches
      this again while its loss falls.

    The finding ends when a later value is as good as the first one in that mode, or better.

    **Why it matters**

    The first value remains the best one. After ``patience`` calls, the scheduler lowers the
    learning rate, and again each time as many calls later, although the training gets better.

    **What to do**

    ``mode="min"`` for what should fall, a loss or an error rate; ``mode="max"`` for an accuracy.

    **When it is silent**

    - Another metric: its direction is not known. A validation loss with ``mode="max"`` is one.
    - Shares of 100, 1,000 or 10,000 examples, and of each number that divides 10,000: they may be
      losses that are rounded to 4 digits or fewer.
    - Shares of 64, 512 or another power of two, or of a multiple of 256 examples: they may be
      losses in bfloat16 or float16, or means of such. Shares of more than 5,000 examples.
    - Percentages of a multiple of 25 examples: they may be means of a few whole numbers.
    - An optimizer with ``maximize=True``; a scheduler that waits for 50 calls or more; a metric on
      a device that was passed as a tensor.

    **Incidents**

    textbook (an accuracy and the default mode)
    """

    kind = "T"
    points_at = ("new_schedule", "schedule", "step")
    calls = Parameter(5, "calls that show in which direction the metric moves")

    state = declare(
        _mode=str,
        _metrics=list[float],
        _losses=list[float],
        _equal=bool,
        _better=bool,
        _size=int,
        _text=str,
        _severity=Severity,
        _sum=float,
        _count=int,
        _last=list[float],
        _highest=float,
        _classes=int,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._sum = 0.0  # of the losses since the last call
        self._count = 0  # of the micro-batches since then
        self._last: list[float] = []  # the losses that a loop may have, of the last one
        self._highest = 0.0  # learning rate
        self._classes = 0  # of the cross entropy that is the only loss; 0: another loss
        self._begin("")

    def _begin(self, mode: str) -> None:
        """The first call of a scheduler with another mode."""
        self._mode = mode
        self._metrics: list[float] = []  # of the first calls
        self._losses: list[float] = []  # the mean training loss before each of them
        self._equal = True  # the metric was the loss at each of them
        self._better = False  # a later metric was as good as the first: nothing more is compared
        self._size = 2  # the metric is no share of fewer examples
        self._text = ""  # what these calls show about the metric
        self._severity: Severity = "info"

    def evaluate(self, window: Window) -> Outcome:
        """The metrics that the scheduler was given since the last step."""
        facts, record = window.facts, window.facts.record
        self._classes = _classes(facts)
        calls = [e for e in facts.own_calls("schedule") if e.mode and e.metric is not None]
        for event, batch in in_order(calls, record.micro_batches):
            if event is not None:
                self._note(event.mode or "", number(event.metric), facts.micro_batches)
            elif batch is not None:
                self._last = list(losses_of(batch, facts.micro_batches))
                self._sum += self._last[0] if self._last else math.nan
                self._count += 1
        rate = number(record.lr) or 0.0
        self._highest = max(self._highest, rate) if self._metrics else rate
        if not self._mode:
            return not_applicable(NONE)
        return self._finding(rate) if self._text else OK

    def _finding(self, rate: float) -> Outcome:
        first, last = self._metrics[0], self._metrics[-1]
        is_lower = rate < self._highest
        lowered = (
            f"Since then, the learning rate fell from {significant(self._highest)} to "
            f"{significant(rate)}."
            if is_lower
            else "It has not lowered the learning rate yet."
        )
        awaited, moved = ("fall", "rose") if self._mode == "min" else ("rise", "fell")
        return finding(
            self._severity,
            f"ReduceLROnPlateau waits for the metric to {awaited}",
            f'The scheduler has mode="{self._mode}". {self._text} In the first '
            f"{counted(len(self._metrics), 'call')}, it {moved} from {significant(first)} to "
            f"{significant(last)}, and the scheduler takes the first value for the best one. "
            f"{lowered}",
            FIX,
            mode=self._mode,
            calls=len(self._metrics),
            metric_first=first,
            metric_last=last,
            lr=rate,
            lr_highest=self._highest,
        )

    def _note(self, mode: str, metric: float | None, k: int) -> None:
        """One call of the scheduler."""
        total, count = self._sum, self._count
        self._sum, self._count = 0.0, 0
        if mode != self._mode:
            self._begin(mode)
        if self._better or metric is None or not math.isfinite(metric):
            return
        if self._metrics and self._sign() * (metric - self._metrics[0]) <= 0:
            self._better, self._text = True, ""
        elif count and math.isfinite(total) and len(self._metrics) < MOST:
            mean = total / count * k
            candidates = (*self._last, total, total * k, total / count, mean)
            self._equal &= any(math.isclose(metric, loss, rel_tol=EQUAL) for loss in candidates)
            self._metrics.append(metric)
            self._losses.append(mean)
            self._compare()

    def _sign(self) -> float:
        return 1.0 if self._mode == "min" else -1.0

    def _whole(self) -> int:
        """The largest share: metrics above 1 can only be percentages."""
        return 1 if max(self._metrics) <= 1 else PERCENT

    def _compare(self) -> None:
        """What shows that the metric got better, although the mode takes it for worse."""
        self._text = ""
        if len(self._metrics) < self.calls:
            return
        if self._mode == "max":
            if self._is_training_loss():
                self._text = "The metric is the loss that the training minimises."
                self._severity = "warning"
        elif self._is_share():
            is_accuracy = self._is_no_error_rate()
            self._severity = "warning" if is_accuracy else "info"
            conclusion = (
                f"The first loss is near that of a model that guesses among {self._classes:,} "
                "classes, whose error rate is large. The metric was small then, and is large now, "
                "so it is an accuracy."
                if is_accuracy
                else "If it is an accuracy, the mode is wrong."
            )
            self._text = (
                f"The metric is a multiple of {self._whole()}/{self._size:,} at each of these "
                "calls, as an accuracy of counted examples is, and the training loss fell from "
                f"{significant(self._losses[0])} to {significant(self._losses[-1])}. {conclusion}"
            )

    def _is_no_error_rate(self) -> bool:
        """Whether it was small when the model had learnt little, and is large now."""
        untrained = self._losses[0] >= GUESS * math.log(max(self._classes, 1))
        first, last = (self._metrics[i] / self._whole() for i in (0, -1))
        return self._classes >= CLASSES and untrained and first <= SMALL and last >= LARGE

    def _is_training_loss(self) -> bool:
        """Equal to it at each call, and falling."""
        half = len(self._metrics) // 2
        before, after = sum(self._metrics[:half]) / half, sum(self._metrics[-half:]) / half
        return self._equal and self._metrics[0] > 0 and after < FALLS * before

    def _is_share(self) -> bool:
        """A share of counts that rose far and steadily while the training loss fell."""
        metrics, losses = self._metrics, self._losses
        if min(losses) <= 0 or losses[-1] > FALLS * losses[0]:
            return False
        if min(metrics) < 0 or max(metrics) > PERCENT or len(set(metrics)) < DISTINCT:
            return False
        whole = self._whole()
        steady = sum(after >= before for before, after in pairwise(metrics))
        if metrics[-1] - metrics[0] < SHARE_MOVES * whole or steady < STEADY * (len(metrics) - 1):
            return False
        size = self._size = _smallest_size([value / whole for value in metrics], self._size)
        if size > LARGEST_SET or not ROUNDED % size or not size % BFLOAT16:
            return False
        is_power_of_two = not size & (size - 1)
        return not is_power_of_two and (whole == 1 or size % HUNDREDTHS > 0)


def _classes(facts: StepFacts) -> int:
    """The classes of the cross entropy that is the only loss of the window; else 0."""
    only = facts.objectives[0] if len(facts.objectives) == 1 else None
    if only is None or not only.kind.startswith("NllLoss") or only.coefficient not in (None, 1):
        return 0
    return max(term.loss_term.classes or 0 for term in only.terms)


def _smallest_size(shares: list[float], least: int) -> int:
    """The smallest number, from ``least`` on, of which all are shares; if none, a larger one."""
    for size in range(least, LARGEST_SET + 1):
        if all(abs(x * size - round(x * size)) <= FLOAT32 * size * x for x in shares):
            return size
    return LARGEST_SET + 1
