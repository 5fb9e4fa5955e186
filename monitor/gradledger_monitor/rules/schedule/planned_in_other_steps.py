"""schedule.planned_in_other_steps"""

from __future__ import annotations

from gradledger_monitor.ingest.schema import LeftOpen
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.rule import AT_THE_END, OK, Rule, Window, counted, finding

FIX = """\
# plan the schedule in what it counts: one step for each call of scheduler.step()
steps = epochs * math.ceil(len(loader) / K)      # optimizer steps, not micro-batches
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, total_steps=steps)"""


class PlannedInOtherSteps(Rule):
    """The LR schedule is planned in micro-batches or optimizer steps, and stepped less often.

    **What it sees**

    When the training ends normally: the schedule is planned for as many steps as micro-batches
    have run, or as many as optimizer steps were taken. It has made at most two thirds of them, and
    the learning rate is still above a fifth of its highest. The plan is read from ``total_steps``,
    ``T_max`` or ``total_iters``, and from the numbers that a function of ``LambdaLR`` holds, except
    for those that are named after a warm-up, an epoch or another part of the training.

    **Why it matters**

    The warm-up takes longer than planned, K times as long if micro-batches were counted, and the
    learning rate never reaches its end: a run that should end at 0 may end near its highest rate.
    The loss falls all the same.

    **What to do**

    Plan the schedule in calls of ``scheduler.step()``. With one for each optimizer step, these are
    the micro-batches of an epoch divided by K and rounded up, times the epochs.

    **When it is silent**

    A training that an unhandled exception or signal ends; hooks that skip short steps when it
    ends; a schedule without a plan (``StepLR``, ``ReduceLROnPlateau``), or whose plan the hooks
    cannot read.

    **Incidents**

    textbook (OneCycleLR over ``len(loader)`` with an accumulation)
    """

    points_at = ("schedule",)
    precondition = AT_THE_END

    def evaluate(self, window: Window) -> Outcome:
        """What the process left unfinished at its end."""
        left = window.facts.record.left_open
        assert left is not None
        if not left.planned:
            return OK
        steps = window.facts.step - 1
        return finding(
            "warning",
            f"The LR schedule made {left.scheduled:,} of the {left.planned:,} steps of its plan",
            f"The training ended after {counted(steps, 'optimizer step')} and "
            f"{counted(left.trained, 'micro-batch')}. The schedule is planned for "
            f"{left.planned:,} steps, {_unit(left, steps)}, and has made {left.scheduled:,}: the "
            "rate changed too slowly, and has not come to its end. If the training was stopped "
            "early, the numbers may agree by chance.",
            FIX,
            planned_steps=left.planned,
            schedule_steps=left.scheduled,
            optimizer_steps=steps,
            micro_batches=left.trained,
        )


def _unit(left: LeftOpen, steps: int) -> str:
    of_steps = abs(left.planned - steps) < abs(left.planned - left.trained)
    about = "" if left.planned in (steps, left.trained) else "about "
    unit = "optimizer steps were taken" if of_steps else "micro-batches ran"
    return f"{about}as many as {unit}"
