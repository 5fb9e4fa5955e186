"""schedule.zero_lr"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.schedule.rates import learning_rates
from gradledger_monitor.rules.state import declare

FIX = """\
# step the scheduler once per optimizer step, and let it end with the training
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / warmup)"""


FIX_LATER = """\
# plan the schedule for all optimizer steps of the training, and step it once for each
steps = epochs * math.ceil(len(loader) / K)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)"""


FIX_BY_EPOCH = """\
for epoch in range(epochs):
    for x, y in loader:
        ...
        optimizer.step()
    scheduler.step()             # after the epoch, if the schedule is made in epochs"""

WAITS = (
    " One of several optimizers may wait, or have come to its end. If that is not intended, look "
    "at what sets its learning rate."
)

# Of the highest rate: below it, float32 parameters do not change. ReduceLROnPlateau, which lowers
# the rate of a model that learns nothing more, does not go as far (its ``eps`` is 1e-8).
TINY = 1e-10


class ZeroLr(Rule):
    """The learning rate is 0, or next to 0, for many steps.

    **What it sees**

    The learning rate of every parameter group is exactly 0 at 20 steps in a row from the first
    one on, or later at 100 steps in a row, or at 10 that are at least half as many as all before
    them: a third of the training changes nothing.
    The same if every rate is below 1e-10 of the highest that any group has had: information after
    100 such steps in a row, or 20 that are as many as all before them, and a warning if they are
    twice as many as these.

    Of one of several optimizers it is information, from 50 first steps on, which names it.

    **Why it matters**

    Such a step changes no parameter, or next to nothing, at full cost. At the start it is often a
    warm-up that is stepped once per epoch, or an integer division; later, a schedule that ended
    before the training, or one in epochs that is stepped on every batch.

    **What to do**

    Print ``scheduler.get_last_lr()`` over the whole run. Compare the number of steps that the
    schedule was made for with the number of optimizer steps.

    **When it is silent**

    A warm-up from 0 that rises within 20 steps; a schedule that comes to 0 with the last steps of
    the training; parameter groups of which one has another rate; one of several optimizers, such as
    of a GAN, that waits with a rate of 0 for fewer steps.

    **Incidents**

    textbook (a warm-up in epochs; a decay for each epoch, stepped on every batch)
    """

    start = Parameter(20, "first steps in a row with a learning rate of 0")
    waits = Parameter(50, "first steps in a row with it, of one of several optimizers")
    later = Parameter(100, "later steps in a row with it")
    short = Parameter(10, "later steps in a row with it, if they are half as many as all before")

    kind = "T"
    points_at = ("step",)

    state = declare(_zero=int, _before=int, _highest=float, _tiny=int, _others=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._zero = 0  # steps in a row with a learning rate of 0
        self._before = 0  # all steps before those
        self._highest = 0.0  # rate of any group
        self._tiny = 0  # steps in a row at which all rates are next to 0
        self._others = 0  # all steps before those

    def after_gap(self) -> None:
        """The steps in between may have had another rate; the next one is not the first."""
        self._begin_anew()

    def _end_zero(self) -> None:
        self._before, self._zero = self._before + self._zero + 1, 0

    def _begin_anew(self) -> None:
        self._end_zero()
        self._others, self._tiny = self._others + self._tiny + 1, 0

    def evaluate(self, window: Window) -> Outcome:
        """The learning rates of all groups."""
        facts = window.facts
        rates = learning_rates(facts.record)
        if not rates:
            return not_measured("the learning rate is not a number that is read")
        highest = max(abs(value) for rate in rates if (value := number(rate)) is not None)
        self._highest = max(self._highest, highest)
        if highest >= TINY * self._highest > 0:
            self._begin_anew()
            return OK
        self._tiny += 1
        if any(rates):
            self._end_zero()
            return self._next_to_zero(facts, highest)
        self._zero += 1
        later = min(self.later, max(self.short, self._before / 2))
        several = len(facts.run.optimizers) > 1
        first = self.waits if several else self.start
        if self._zero < (later if self._before else first):
            return OK
        since = "from the first step on" if not self._before else "in a row"
        of = f" of {facts.optimizer_label}" if several else ""
        return finding(
            "info" if several else "warning",
            f"The learning rate{of} is 0",
            f"The learning rate of every parameter group{of} was 0 at "
            f"{counted(self._zero, 'step')} {since}, so these steps changed no parameter."
            f"{WAITS if several else ''}",
            FIX_LATER if self._before else FIX,
            steps_at_zero=self._zero,
            from_start=not self._before,
        )

    def _next_to_zero(self, facts: StepFacts, rate: float) -> Outcome:
        """A schedule may end there on purpose, but not for most of the steps."""
        if self._tiny < min(self.later, max(2 * self.short, self._others)):
            return OK
        several = len(facts.run.optimizers) > 1
        of = f" of {facts.optimizer_label}" if several else ""
        return finding(
            "warning" if self._tiny >= 2 * self._others and not several else "info",
            f"The learning rate{of} is next to 0",
            f"The learning rate{of} has been below 1e-10 of its highest value at "
            f"{counted(self._tiny, 'step')} in a row, after {counted(self._others, 'other step')}. "
            f"It is now {significant(rate)}, and was {significant(self._highest)} at its highest. "
            "A schedule in epochs that is stepped on every batch has this effect.",
            FIX_BY_EPOCH,
            steps_next_to_zero=self._tiny,
            steps_before=self._others,
            lr=rate,
            lr_highest=self._highest,
        )
