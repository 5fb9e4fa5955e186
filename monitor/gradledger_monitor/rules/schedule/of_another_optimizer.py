"""schedule.of_another_optimizer"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome, Withdrawal
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.framework_fixes import with_optimizer
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.schedule.rates import learning_rates
from gradledger_monitor.rules.state import declare

NONE = "no LR schedule of an optimizer that it was created in place of"

FIX = """\
# the scheduler is created after the optimizer that steps, and again if that is created again
optimizer = torch.optim.AdamW(groups, lr=lr)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)"""


class OfAnotherOptimizer(Rule):
    """The LR scheduler changes the rate of an optimizer that never stepped.

    **What it sees**

    At least 10 steps of an optimizer, all at one learning rate, and as many of an LR scheduler that
    changed the rate of an earlier optimizer. That one is of the same class, holds the same
    parameters, or a part of them, or more, and never stepped.

    **Why it matters**

    The schedule has no effect on the training: the rate neither warms up nor decays. What the
    scheduler returns as its last rate is not the one that is applied.

    **What to do**

    Create the scheduler after the optimizer, and again wherever the optimizer is created again, as
    where parameter groups are split or a checkpoint is loaded.

    **When it is silent**

    The first optimizer has stepped: a phase of the training may have ended, on purpose or not. The
    rate of the optimizer that steps has moved, as in a loop that copies it from the other every few
    steps, which withdraws the finding, or an LR scheduler steps for it, too. The first one is of
    another class, or each of the two holds parameters that the other does not: it may begin later.
    The scheduler stepped more often than micro-batches ran; the hooks do not observe it, as those
    of other libraries.

    **Incidents**

    textbook (an optimizer that is created again, and its scheduler is not)
    """

    points_at = ("schedule", "step")
    needed = Parameter(10, "steps of the optimizer, and of the schedule")

    state = declare(_rates=list[float])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._rates: list[float] = []  # that the finding states

    def evaluate(self, window: Window) -> Outcome:
        """A schedule of an optimizer that this one was created again in place of."""
        facts, record = window.facts, window.facts.record
        rates = [rate for each in learning_rates(record) if (rate := number(each)) is not None]
        other = number(record.rate_elsewhere)
        if record.elsewhere is None or other is None or not rates:
            if self._rates and rates and rates != self._rates:
                return Withdrawal("not_applicable", "the learning rate follows another schedule")
            return not_applicable(NONE)
        if min(record.elsewhere, record.step) < self.needed:
            return OK
        self._rates = rates
        at = f"a learning rate of {significant(rates[0])}"
        if len(rates) > 1:
            at = f"the same learning rates ({significant(rates[0])} in the first parameter group)"
        name = facts.optimizer_name
        return finding(
            "warning",
            "The LR scheduler changes the rate of an optimizer that never stepped",
            f"An LR scheduler stepped {counted(record.elsewhere, 'time')} for another {name}, "
            "which was created before this one and holds parameters of it. That optimizer never "
            f"stepped; its rate is now {significant(other)}. {facts.optimizer_label} made "
            f"{counted(record.step, 'step')}, all at {at}: the schedule does not change it.",
            with_optimizer(FIX, name),
            schedule_steps=record.elsewhere,
            rate_of_schedule=other,
            rate=rates[0],
        )
