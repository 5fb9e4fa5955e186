"""schedule.plateau_mode"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.schedule.plateau_calls import in_order, losses_of
from gradledger_monitor.rules.state import declare

EQUAL = 1e-5  # of the loss: what float32 and the division by K round
MOST = 32  # calls that are compared
FALLS = 0.9  # of the first loss: the last one, of a training that learns
CLOSE = 2.0  # a metric within this factor of the training loss at each call follows it
HALVES = 1.5  # both fall by this factor, or more
MOST_WRONG = 0.5  # an error rate that rises above it while the training loss falls is rare
SHARE_MOVES = 0.1  # a share of counts, from the first to the last call
PERCENT = 100
STEADY = 0.7  # of the calls move as the first to the last
LARGEST_SET = 5_000  # examples of an evaluation whose share of counts is recognised
ROUNDED = 10_000  # a multiple of 1/10,000 may be a rounded loss
FLOAT32 = 2e-7  # what a quotient in float32 rounds
DISTINCT = 4  # values that show that all are multiples of one fraction

NONE = "no ReduceLROnPlateau that waits for fewer than 50 calls is known"

FIX = """\
# a loss or an error rate should fall
scheduler = ReduceLROnPlateau(optimizer, mode="min")
scheduler.step(validation_loss)
# an accuracy should rise
scheduler = ReduceLROnPlateau(optimizer, mode="max")
scheduler.step(accuracy)"""


class _Course(NamedTuple):
    """What the calls show together."""

    metric: str
    severity: Severity = "warning"


class PlateauMode(Rule):
    """ReduceLROnPlateau takes a better metric for a worse one.

    **What it sees**

    The mode of the scheduler, and the metric at its first calls, 5 to 32, of which the first is the
    best in that mode. It is a warning in one of these cases:

    - the mode is ``max``, and the metric is the loss that the training minimises: that of the last
      micro-batch, or the mean or the sum of all since the call before. It fell;
    - the mode is ``max``, and the metric is within a factor of 2 of the training loss at each call.
      Both fell by a factor of 1.5 or more, as a validation loss does;
    - the training loss fell, and the metric is a share of counts, such as an accuracy: all its
      values are multiples of one fraction. It moved by 0.1 or more against the mode, at 70% of the
      calls in this direction: an accuracy that rises above 0.5 with ``mode="min"``, the default.
      Below 0.5, or if it falls with ``mode="max"``, this is information: an accuracy falls, too,
      where a model forgets.

    **Why it matters**

    The first value remains the best one. After ``patience`` calls, the scheduler lowers the
    learning rate, and again each time as many calls later, although the training gets better.

    **What to do**

    ``mode="min"`` for what should fall, a loss or an error rate; ``mode="max"`` for an accuracy.

    **When it is silent**

    A metric whose direction is not known; one that got better after the first call; a share of
    counts that may be a rounded loss (a multiple of 0.0001), or of more than 5,000 examples; a
    scheduler that waits for 50 calls or more; a metric on a device that was passed as a tensor.

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
        _text=str,
        _severity=Severity,
        _sum=float,
        _count=int,
        _last=list[float],
        _highest=float,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._mode = ""
        self._metrics: list[float] = []  # of the first calls
        self._losses: list[float] = []  # the mean training loss before each of them
        self._equal = True  # the metric was the loss at each of them
        self._text = ""  # what these calls show about the metric
        self._severity: Severity = "info"  # a warning: no further calls are added
        self._sum = 0.0  # of the losses since the last call
        self._count = 0  # of the micro-batches since then
        self._last: list[float] = []  # the losses that a loop may have, of the last one
        self._highest = 0.0  # learning rate

    def evaluate(self, window: Window) -> Outcome:
        """The metrics that the scheduler was given since the last step."""
        facts, record = window.facts, window.facts.record
        calls = [e for e in facts.own_calls("schedule") if e.mode and e.metric is not None]
        for event, batch in in_order(calls, record.micro_batches):
            if event is not None:
                self._note(event.mode or "", number(event.metric), facts.micro_batches)
                course = self._course() or _Course("", "info")
                self._text, self._severity = course.metric, course.severity
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
        verb = "fell" if last < first else "rose"
        return finding(
            self._severity,
            f"ReduceLROnPlateau waits for the metric to {'fall' if verb == 'rose' else 'rise'}",
            f'The scheduler has mode="{self._mode}". {self._text} In the first '
            f"{counted(len(self._metrics), 'call')}, it {verb} from {significant(first)} to "
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
        """A call; those of another scheduler begin anew."""
        total, count, last = self._sum, self._count, self._last
        self._sum, self._count = 0.0, 0
        if mode != self._mode:
            self._mode, self._equal, self._severity = mode, True, "info"
            self._metrics, self._losses = [], []
        if self._severity == "warning" or not count or len(self._metrics) == MOST:
            return
        if metric is None or not math.isfinite(metric) or not math.isfinite(total):
            return
        mean = total / count * k
        candidates = (*last, total, total * k, total / count, mean)
        self._equal &= any(math.isclose(metric, loss, rel_tol=EQUAL) for loss in candidates)
        self._metrics.append(metric)
        self._losses.append(mean)

    def _course(self) -> _Course | None:
        """What shows that the metric got better, although the mode takes it for worse."""
        metrics, losses = self._metrics, self._losses
        if len(metrics) < self.calls:
            return None
        sign = 1.0 if self._mode == "min" else -1.0
        worse = [sign * (value - metrics[0]) for value in metrics[1:]]
        if min(worse) <= 0:
            return None
        if self._mode == "max" and self._equal:
            half = len(metrics) // 2
            before, after = sum(metrics[:half]) / half, sum(metrics[-half:]) / half
            if metrics[0] > 0 and after < FALLS * before:
                return _Course("The metric is the loss that the training minimises.")
        if min(losses) <= 0 or losses[-1] > FALLS * losses[0]:
            return None
        return self._follows() or self._share(sign)

    def _follows(self) -> _Course | None:
        """A metric that has the size of the training loss, and falls with it."""
        metrics, losses = self._metrics, self._losses
        if self._mode == "min" or min(metrics) <= 0:
            return None
        pairs = zip(metrics, losses, strict=True)
        if any(not 1 / CLOSE <= metric / loss <= CLOSE for metric, loss in pairs):
            return None
        if any(values[0] < HALVES * values[-1] for values in (metrics, losses)):
            return None
        return _Course(
            "The metric is within a factor of 2 of the training loss at each call, and falls with "
            "it, as a validation loss does."
        )

    def _share(self, sign: float) -> _Course | None:
        """A share of counts that moved far and steadily."""
        metrics = self._metrics
        if min(metrics) < 0 or max(metrics) > PERCENT:
            return None
        shares = metrics if max(metrics) <= 1 else [value / PERCENT for value in metrics]
        steady = sum(sign * (b - a) >= 0 for a, b in pairwise(metrics))
        if sign * (shares[-1] - shares[0]) < SHARE_MOVES or steady < STEADY * (len(shares) - 1):
            return None
        size = _counted_examples(shares)
        if size is None:
            return None
        is_min = self._mode == "min"
        kind = "an accuracy" if is_min else "an error rate"
        return _Course(
            f"The metric is a multiple of 1/{size:,} at each call, as {kind} of counted examples "
            f"is, and the training loss fell from {significant(self._losses[0])} to "
            f"{significant(self._losses[-1])}. If it is {kind}, the mode is wrong.",
            "warning" if is_min and shares[-1] > MOST_WRONG else "info",
        )


def _counted_examples(shares: list[float]) -> int | None:
    """The smallest number of which all are shares; None if there is none, or if it is no proof."""
    if len(set(shares)) < DISTINCT:
        return None
    for size in range(2, LARGEST_SET + 1):
        if all(abs(x * size - round(x * size)) <= FLOAT32 * size * x for x in shares):
            return None if ROUNDED % size == 0 else size
    return None
