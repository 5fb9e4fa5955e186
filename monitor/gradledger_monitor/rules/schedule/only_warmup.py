"""schedule.only_warmup"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import Parameter
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import ALSO_AT_THE_END, OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.schedule.rates import NO_PLAN, unplanned

FIX = """\
# a warm-up of a few percent of all steps
scheduler = get_cosine_schedule_with_warmup(
    optimizer, num_warmup_steps=steps // 20, num_training_steps=steps
)"""


class OnlyWarmup(Rule):
    """The warm-up of the learning rate is longer than the whole training.

    **What it sees**

    When the training ends normally: the schedule, a function of ``LambdaLR``, has made the number
    of steps that it is planned for, and the function holds a warm-up that is at least as long. The
    rate never fell. Both numbers are read from the variables of the function, that of the warm-up
    by its name; those of transformers' schedules are among them. In a training of fewer than 200
    steps, which may try out a longer one, it is information.

    **Why it matters**

    The learning rate never reaches the value that is set, and never decays: with a warm-up of 500
    steps and a training of 100, it ends at a fifth of it. This comes with the default of a recipe
    for more data.

    **What to do**

    Set the warm-up as a share of all steps (``warmup_ratio``), such as 3%.

    **When it is silent**

    A training that was stopped before the end of its plan; a function that also holds numbers of
    epochs, or of steps in each; other schedules, of which no number is that of the warm-up.

    **Incidents**

    textbook (a warm-up of 500 steps in a training of 100)
    """

    points_at = ("new_schedule", "schedule", "step")
    precondition = ALSO_AT_THE_END
    short = Parameter(200, "planned steps below which it is information: it may be a trial")

    def evaluate(self, window: Window) -> Outcome:
        """What the process left at its end."""
        left = window.facts.record.left_open
        if left is None:
            return unplanned(window.facts.record) or OK
        if not left.warmup:
            return OK if left.planned else not_applicable(NO_PLAN)
        return finding(
            "info" if left.planned < self.short else "warning",
            "The warm-up is longer than the training",
            f"The LR schedule is planned for {counted(left.planned, 'step')}, has made "
            f"{left.scheduled:,}, and has a warm-up of {counted(left.warmup, 'step')}. The "
            "learning rate rose until the end, and never reached the value that is set.",
            FIX,
            planned_steps=left.planned,
            schedule_steps=left.scheduled,
            warmup_steps=left.warmup,
        )
