"""schedule.resumed_in_part"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.ingest.schema import LeftOpen, Resumed
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import ALSO_AT_THE_END, OK, Rule, Window, finding
from gradledger_monitor.rules.state import declare

FIX = """\
checkpoint = torch.load(path)
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])     # all that has a state"""

NOT_COUNTED = -1  # steps of an optimizer that had stepped and does not count them
FEWEST = 2  # steps before the resume: some loops step their schedule once before the training


class ResumedInPart(Rule):
    """A training is resumed in part: the state of its schedule or of its optimizer is not loaded.

    **What it sees**

    - ``scheduler.load_state_dict`` restores a schedule in its course, and the optimizer begins with
      an empty state, although it keeps averages of its gradients. It is a warning if these reach
      back 100 steps or more (1,000 for Adam with a beta of 0.999), otherwise information.
    - ``optimizer.load_state_dict`` restores an optimizer that had stepped under an LR schedule, and
      the schedule that steps it now begins at its first step: information. Where the optimizer
      counts no steps (SGD), its averages and a rate that its schedule has changed show that. It is
      a warning when the training ends, if the steps before the resume and those since are together
      as many as the schedule is planned for.

    **Why it matters**

    Without its averages, the first step of Adam is the sign of one gradient, at the learning rate
    of a trained model. A schedule that begins again has the warm-up and the highest rate again, and
    does not come to its end.

    **What to do**

    Save and load the states of model, optimizer, scheduler and ``GradScaler`` together.

    **When it is silent**

    A checkpoint of which only the weights are loaded, as for fine-tuning; an optimizer that
    replaces an earlier one of the same parameters in the process; a schedule that is created with
    ``last_epoch``, or stepped up to where it was; rates that the loop computes itself; optimizers
    that are not PyTorch's, and those without averages; a schedule that begins anew, if the loaded
    optimizer has neither a count of steps that is read without waiting for a device nor averages.

    **Incidents**

    textbook (a checkpoint without the state of the scheduler, or of the optimizer)
    """

    points_at = ("schedule", "load_state", "step")
    precondition = ALSO_AT_THE_END
    long = Parameter(100, "steps that the averages reach back, from which losing them is a warning")

    state = declare(_steps=int, _lr_before=float, _lr=float)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._steps = 0  # that the optimizer had made under a schedule which was not loaded
        self._lr_before = 0.0  # in its loaded state
        self._lr = 0.0  # at the first step

    def after_gap(self) -> None:
        """The first step of the schedule may be missing."""
        self._steps = 0

    def evaluate(self, window: Window) -> Outcome:
        """At the first step, at the first one of the schedule, and at the end."""
        record = window.facts.record
        if record.left_open is not None:
            return _at_the_end(window, record.left_open)
        resumed = record.resumed
        if resumed is not None:
            if resumed.empty is not None:
                return self._without_averages(window, resumed, number(resumed.empty) or 0.0)
            if resumed.loaded and resumed.under_schedule and resumed.schedule is None:
                uncounted = NOT_COUNTED if resumed.moved else 0
                self._steps = uncounted if resumed.steps is None else resumed.steps
                self._lr_before = number(resumed.lr) or 0.0
                self._lr = number(record.lr) or 0.0
        if not self._steps or record.scheduled is None:
            return OK
        steps, self._steps = self._steps, 0
        if record.scheduled != 1 or (steps < FEWEST and steps != NOT_COUNTED):
            return OK
        return self._begins_anew(window, steps)

    def _without_averages(self, window: Window, resumed: Resumed, horizon: float) -> Outcome:
        position = resumed.schedule or 0
        if position < FEWEST or not math.isfinite(horizon):
            return OK
        return finding(
            "warning" if horizon >= self.long else "info",
            "The LR schedule is resumed, and the optimizer is not",
            f"The state of the LR schedule was loaded at its step {position:,}, and no state of "
            f"{window.facts.optimizer_label}. Its averages of the gradients, which reach back "
            f"{counted(round(horizon), 'step')}, begin anew.",
            FIX,
            schedule_steps=position,
            horizon=round(horizon),
        )

    def _begins_anew(self, window: Window, steps: int) -> Outcome:
        past = "stepped" if steps == NOT_COUNTED else f"made {counted(steps, 'step')}"
        return finding(
            "info",
            "The optimizer is resumed, and its LR schedule begins anew",
            f"The state of {window.facts.optimizer_label} was loaded, which had {past} under an LR "
            "schedule. No state of a schedule was loaded, and the one that runs is at its first "
            "step. The learning rate was "
            f"{significant(self._lr_before)} in the loaded state, and {significant(self._lr)} at "
            "the first step. If a new schedule is intended, ignore this.",
            FIX,
            steps_before=None if steps == NOT_COUNTED else steps,
            lr_before=self._lr_before,
            lr=self._lr,
        )


def _at_the_end(window: Window, left: LeftOpen) -> Outcome:
    if not left.resumed:
        return OK
    return finding(
        "warning",
        "The LR schedule began anew at a resume, and has not come to its end",
        f"The state of {window.facts.optimizer_label} was loaded after "
        f"{counted(left.resumed, 'step')}, and the training ended {counted(left.scheduled, 'step')}"
        f" later. The LR schedule is planned for {left.planned:,}, as many as both together, and "
        f"made {left.scheduled:,} of them: it began at its first step again.",
        FIX,
        steps_before=left.resumed,
        schedule_steps=left.scheduled,
        planned_steps=left.planned,
    )
