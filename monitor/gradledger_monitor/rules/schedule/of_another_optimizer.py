"""schedule.of_another_optimizer"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.schedule.rates import learning_rates
from gradledger_monitor.rules.state import declare

FIX = """\
# wherever the optimizer is created, create its scheduler, too
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
# of a checkpoint: optimizer.load_state_dict(...), and then scheduler.load_state_dict(...)"""


class OfAnotherOptimizer(Rule):
    """The LR schedule sets the rate of an optimizer that does not step.

    **What it sees**

    Ten steps of an optimizer at one learning rate, while an LR scheduler steps another optimizer
    that holds some of the same parameters and makes no step itself, and has changed its rate.

    **Why it matters**

    The schedule has no effect on the training: the rate neither warms up nor decays. What the
    scheduler prints as its last rate is not the one that is applied.

    **What to do**

    Create the scheduler after the optimizer, and again wherever the optimizer is created again, as
    where layers are unfrozen or a checkpoint is loaded.

    **When it is silent**

    The optimizer that steps has a schedule as well, or the loop changes its rate, as one that
    copies it from the other; the optimizers share no parameter; schedules that the hooks do not
    observe, as of other libraries; fewer than 8 steps of the schedule.

    **Incidents**

    textbook (an optimizer that is created again, and its scheduler is not)
    """

    points_at = ("schedule", "step")
    needed = Parameter(10, "steps at one learning rate")

    state = declare(_rates=list[float], _steps=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._rates: list[float] = []  # since the first step with such a schedule
        self._steps = 0  # at these

    def after_gap(self) -> None:
        """A rate may have moved in between, and be back."""
        self._steps = 0

    def evaluate(self, window: Window) -> Outcome:
        """A schedule of another optimizer, and the rates that this one steps at."""
        record = window.facts.record
        rates = [rate for each in learning_rates(record) if (rate := number(each)) is not None]
        before, self._rates = self._rates, rates
        if record.elsewhere is None or not rates:
            self._steps = 0
            return not_applicable("no LR schedule of another optimizer of the same parameters")
        self._steps = self._steps + 1 if rates == before else 1
        if self._steps < self.needed:
            return OK
        facts, other = window.facts, number(record.rate_elsewhere)
        sets = "" if other is None else f", whose rate is {significant(other)} by now"
        return finding(
            "warning",
            "The LR schedule sets the rate of an optimizer that does not step",
            f"The LR scheduler stepped {counted(record.elsewhere, 'time')} for another optimizer "
            f"of the same parameters{sets}. That optimizer has not stepped since. "
            f"{facts.optimizer_label} stepped at a learning rate of {significant(rates[0])} for at "
            f"least {counted(self._steps, 'step')}: the schedule does not change it.",
            FIX,
            schedule_steps=record.elsewhere,
            rate_of_schedule=other,
            rate=rates[0],
        )
