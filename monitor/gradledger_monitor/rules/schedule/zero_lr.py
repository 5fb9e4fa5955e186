"""schedule.zero_lr"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradledger_monitor.ingest.schema import Number
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.layers.combined import combined
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.norm.dead_layer import MOST_LISTED, names_of
from gradledger_monitor.rules.norm.layers import layers_by_rank
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

FIX_GROUP = """\
for index, group in enumerate(optimizer.param_groups):   # before the first step
    print(index, group["lr"], group.get("initial_lr"))
# a group that should not be trained: requires_grad_(False) on its parameters"""

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

    Of one of several optimizers it is information, from 50 first steps on, which names it. So is
    one parameter group of several whose rate was 0 at each of 50 or more steps, while that of
    another is not, if the layers that are measured include some that have a gradient and do not
    move, and no update may have been rounded away.

    **Why it matters**

    Such a step changes no parameter, or next to nothing, at full cost. At the start it is often a
    warm-up that is stepped once per epoch, or an integer division; later, a schedule that ended
    before the training, or one in epochs that is stepped on every batch.

    **What to do**

    Print ``scheduler.get_last_lr()`` over the whole run. Compare the number of steps that the
    schedule was made for with the number of optimizer steps.

    **When it is silent**

    A warm-up from 0 that rises within 20 steps; a schedule that comes to 0 with the last steps of
    the training; a parameter group with a rate of 0 whose parameters are frozen (``requires_grad``
    is ``False``), or that has had another rate; one of several optimizers, such as of a GAN, that
    waits with a rate of 0 for fewer steps.

    **Incidents**

    textbook (a warm-up in epochs; a decay for each epoch, stepped on every batch; a factor of 0 for
    one group)
    """

    start = Parameter(20, "first steps in a row with a learning rate of 0")
    waits = Parameter(50, "first steps with it, of one of several optimizers or parameter groups")
    later = Parameter(100, "later steps in a row with it")
    short = Parameter(10, "later steps in a row with it, if they are half as many as all before")

    kind = "T"
    points_at = ("step", "new_schedule")

    state = declare(
        _zero=int,
        _before=int,
        _highest=float,
        _tiny=int,
        _others=int,
        _groups=list[int | None],
        _unmoved=list[str],
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._zero = 0  # steps in a row with a learning rate of 0
        self._before = 0  # all steps before those
        self._highest = 0.0  # rate of any group
        self._tiny = 0  # steps in a row at which all rates are next to 0
        self._others = 0  # all steps before those
        # by group: recorded steps, at all of which its rate was 0; None: another rate at some
        self._groups: list[int | None] = []
        # layers that had a gradient and did not move, when they were measured last
        self._unmoved: list[str] = []

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
        of_group = self._one_group(facts, rates)
        if highest >= TINY * self._highest > 0:
            self._begin_anew()
            return of_group or OK
        self._tiny += 1
        if any(rates):
            self._end_zero()
            return self._next_to_zero(facts, highest)
        self._zero += 1
        later = min(self.later, max(self.short, self._before / 2))
        several = len(facts.run.optimizers) > 1
        first = self.waits if several else self.start
        if self._zero < (later if self._before else first):
            return OK if self._before or several else self._none_other()
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

    def _none_other(self) -> Outcome:
        """A warm-up may begin like this, and no step has shown that it rises."""
        return not_measured(
            f"the learning rate was 0 at each of the {counted(self._zero, 'step')} so far; "
            f"from {self.start:g} on it is reported"
        )

    def _one_group(self, facts: StepFacts, rates: Sequence[Number]) -> Outcome | None:
        """A group whose rate was 0 at all steps, while others train."""
        if len(rates) < len(self._groups):  # other groups
            self._groups = []
        before = [*self._groups, *[0] * (len(rates) - len(self._groups))]
        self._groups = [
            None if rate or steps is None else steps + 1
            for rate, steps in zip(rates, before, strict=True)
        ]
        ranks = layers_by_rank(facts)
        if ranks is not None:
            sharded = any(record.sharded for record in facts.records.values())
            layers = combined(ranks, sharded)
            still = [each.name for each in layers if each.gradient and each.update == 0]
            # in half precision, or at a tiny rate, an update may be rounded away
            self._unmoved = [] if any(rank.rounded for rank in ranks.values()) else still
        zero = [i for i, n in enumerate(self._groups) if n is not None and n >= self.waits]
        if not zero or not any(rates) or not self._unmoved:
            return None
        steps = min(n for n in self._groups if n is not None and n >= self.waits)
        which = f"parameter group {zero[0] + 1} of {len(rates)}"
        if len(zero) > 1:
            which = f"{len(zero)} of the {len(rates)} parameter groups"
        of = f" of {facts.optimizer_label}" if len(facts.run.optimizers) > 1 else ""
        return finding(
            "info",
            f"The learning rate of {which} is 0",
            f"The learning rate of {which}{of} was 0 at each of "
            f"{counted(steps, 'recorded step')}, and that of another is "
            f"{significant(max(number(rate) or 0.0 for rate in rates))}. When the layers were "
            f"measured last, {names_of(self._unmoved)} had a gradient, and did not move. "
            "That may be intended, or a later stage may set a rate. If they should not be trained, "
            "requires_grad_(False) saves their backward.",
            FIX_GROUP,
            steps_at_zero=steps,
            groups=[index + 1 for index in zero],
            unmoved=self._unmoved[:MOST_LISTED],
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
