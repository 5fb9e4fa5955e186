"""schedule.plateau_of_one_batch"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.schedule.plateau_calls import EQUAL, in_order, losses_of
from gradledger_monitor.rules.state import declare

RISES = 0.3  # of the calls: noise goes up and down

SEVERAL = ", and not a mean over all since the call before"
ONE = (
    ". It is called once per micro-batch, so its patience counts micro-batches. If an epoch has "
    "only one, this is right"
)
NONE = (
    "no ReduceLROnPlateau that waits for fewer than 50 calls is known to be given the loss of one "
    "micro-batch"
)

FIX = """\
# the mean of all micro-batches of an epoch, or a validation loss, once per epoch
losses.append(loss.item())
...
scheduler.step(sum(losses) / len(losses))"""


class PlateauOfOneBatch(Rule):
    """ReduceLROnPlateau is given the loss of one micro-batch.

    **What it sees**

    At 5 calls in a row, the scheduler was given the loss of the last micro-batch before the call,
    as ``loss.item()`` after the loop over an epoch returns it. The micro-batches hold different
    data, and the loss rose at 30% of the calls. It is a warning once the scheduler has lowered the
    learning rate, if each time at least 2 micro-batches ran since the call before, and information
    otherwise: with one call per micro-batch, patience counts micro-batches, and an epoch may have
    only one.

    **Why it matters**

    Losses of single micro-batches differ by chance. A low one becomes the best value, the next ones
    may not reach it, and the scheduler takes that for a plateau, although the mean loss may fall.

    **What to do**

    Give it the mean loss of an epoch, or a validation loss.

    **When it is silent**

    A scheduler that waits for 50 calls or more, which is made to be called at each step; training
    on the same data each time; a loss that falls steadily; a loss on a device that was passed as a
    tensor; losses whose targets are not seen, by which different data is known.

    **Incidents**

    textbook (``scheduler.step(loss)`` after the loop over an epoch)
    """

    kind = "T"
    points_at = ("schedule", "step")
    calls = Parameter(5, "calls in a row with the loss of the last micro-batch")

    state = declare(
        _losses=list[float],
        _data=float | None,
        _metric=float | None,
        _of_data=float | None,
        _count=int,
        _rises=int,
        _between=int,
        _several=bool,
        _highest=float,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._losses: list[float] = []  # that the loop may have, of the last micro-batch
        self._data: float | None = None  # its fingerprint
        self._metric: float | None = None  # of the last call
        self._of_data: float | None = None  # the fingerprint at that
        self._count = 0  # calls in a row with the loss of the last micro-batch
        self._rises = 0  # of these, with a larger one than that before
        self._between = 0  # micro-batches since the last call
        self._several = False  # before each of the calls in a row, there was more than one
        self._highest = 0.0  # learning rate since the first of them

    def after_gap(self) -> None:
        """The last micro-batch is not known."""
        self._losses, self._count, self._between = [], 0, 0

    def evaluate(self, window: Window) -> Outcome:
        """The losses that the scheduler was given since the last step."""
        facts, record = window.facts, window.facts.record
        calls = [e for e in facts.own_calls("schedule") if e.metric is not None]
        for event, batch in in_order(calls, record.micro_batches):
            if event is not None:
                self._note(number(event.metric))
                self._between = 0
            elif batch is not None:
                self._losses = list(losses_of(batch, facts.micro_batches))
                self._data = number(batch.fingerprint)
                self._between += 1
        rate = number(record.lr) or 0.0
        self._highest = max(self._highest, rate) if self._count else rate
        if not calls and not self._count:
            return not_applicable(NONE)
        if self._count < self.calls or self._rises < RISES * self._count:
            return OK
        is_lower = rate < self._highest
        lowered = (
            f"Since then, the learning rate fell from {significant(self._highest)} to "
            f"{significant(rate)}."
            if is_lower
            else "It has not lowered the learning rate yet."
        )
        several = self._several
        return finding(
            "warning" if is_lower and several else "info",
            f"ReduceLROnPlateau is {'given the loss of one' if several else 'called for each'} "
            "micro-batch",
            f"At the last {counted(self._count, 'call')}, the scheduler was given the loss of the "
            f"last micro-batch before the call{SEVERAL if several else ONE}. {self._rises:,} of "
            f"these losses were larger than the one before. {lowered}",
            FIX,
            calls=self._count,
            rises=self._rises,
            lr=rate,
            lr_highest=self._highest,
        )

    def _note(self, metric: float | None) -> None:
        """A call: whether it was given the loss of the last micro-batch, of other data."""
        before, of_before = self._metric, self._of_data
        self._metric, self._of_data = metric, self._data
        is_known = self._data is not None and self._data != of_before
        if (
            metric is None
            or not is_known
            or not any(math.isclose(metric, loss, rel_tol=EQUAL) for loss in self._losses)
        ):
            self._count = self._rises = 0
            return
        if self._several != (self._between > 1):
            self._several = not self._several
            self._count = self._rises = 0
        self._count += 1
        self._rises += self._count > 1 and before is not None and metric > before
