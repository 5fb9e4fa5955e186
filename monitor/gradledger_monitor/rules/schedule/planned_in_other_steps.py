"""schedule.planned_in_other_steps"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.ingest.schema import LeftOpen, StepRecord
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import ALSO_AT_THE_END, OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.schedule.rates import NO_PLAN, unplanned
from gradledger_monitor.rules.state import declare

FIX = """\
# plan the schedule in what it counts: one step for each call of scheduler.step()
steps = epochs * math.ceil(len(loader) / K)      # optimizer steps, not micro-batches
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, total_steps=steps)"""

FIX_STEPPED = """\
# it is planned in optimizer steps: step it after each; in Lightning, with the interval "step"
optimizer.step()
scheduler.step()"""

FIX_OF_RANKS = """\
# with R ranks, each makes a part of the steps: len() of the loader that has the DistributedSampler
steps = epochs * math.ceil(len(loader) / K)      # optimizer steps of each rank
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, total_steps=steps)"""

FIX_RISEN = """\
# plan the schedule for all calls of scheduler.step(): one per epoch, or one per optimizer step
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
for epoch in range(epochs):
    ...
    scheduler.step()"""

NEAR = 0.02  # of the plan: how far from its end the rate may be lowest
LOW, AGAIN = 0.05, 0.1  # of the highest rate, at its lowest, and risen again


class PlannedInOtherSteps(Rule):
    """The LR schedule is planned in other steps than those on which it is stepped.

    **What it sees**

    When the training ends normally: the schedule is planned for as many steps as micro-batches have
    run, or as many as optimizer steps were taken. It has made at most two thirds of them, and the
    learning rate is still above a fifth of its highest. The plan is read from
    ``total_steps``, ``T_max`` or ``total_iters``, and from the numbers that a function of
    ``LambdaLR`` holds, except for those that are named after a warm-up, an epoch or another part of
    the training.

    It is information if the plan equals only the number of steps, or of micro-batches, of all ranks
    together: on two ranks, a training that is stopped after half of its plan looks the same.

    Also information: the schedule has made more steps than planned, and the rate, lowest where the
    plan ended, has risen again to at least a tenth of its highest. ``CosineAnnealingLR`` rises
    again after ``T_max`` steps.

    **Why it matters**

    The warm-up takes longer than planned, K times as long if micro-batches were counted, R times if
    the steps of all R ranks were, and the learning rate never reaches its end: a run that should
    end at 0 may end near its highest rate. The loss falls all the same. A schedule that is stepped
    more often than planned, on every batch instead of once per epoch, goes up and down all the
    time.

    **What to do**

    Plan the schedule in calls of ``scheduler.step()``. With one for each optimizer step, these are
    the micro-batches of an epoch divided by K and rounded up, times the epochs; on several ranks,
    the micro-batches of one of them.

    **When it is silent**

    A training that an unhandled exception or signal ends; hooks that skip short steps when it
    ends; a schedule without a plan (``StepLR``, ``ReduceLROnPlateau``), whose plan the hooks cannot
    read, or that is no LR scheduler of PyTorch: it is not applicable. Of a rate that rises again:
    ``CosineAnnealingWarmRestarts`` and ``CyclicLR``, which are made to; a few steps past the end; a
    warm-up by another scheduler in front.

    **Incidents**

    textbook (OneCycleLR over ``len(loader)`` with an accumulation; a cosine in epochs, stepped on
    every batch)
    """

    points_at = ("new_schedule", "schedule")
    precondition = ALSO_AT_THE_END

    state = declare(_highest=float, _lowest=float, _turn=int, _risen=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._highest = 0.0  # learning rate
        self._lowest = math.inf  # up to the end of the schedule
        self._turn = 0  # the step of the schedule at that
        self._risen = False  # the rate is, or was, up again after it

    def evaluate(self, window: Window) -> Outcome:
        """What the process left unfinished at its end; before, a rate that rises again."""
        left = window.facts.record.left_open
        if left is None:
            return self._risen_again(window.facts.record)
        if not left.planned:
            return not_applicable(NO_PLAN)
        if left.resumed or left.warmup:
            return OK
        steps = window.facts.step - 1
        unit, together = _unit(left, steps, window.facts.run.world_size)
        if not unit:
            return OK
        condition = "If the plan counts the steps of all ranks together, the" if together else "The"
        return finding(
            "info" if together else "warning",
            f"The LR schedule made {left.scheduled:,} of the {left.planned:,} steps of its plan",
            f"The training ended after {counted(steps, 'optimizer step')} and "
            f"{counted(left.trained, 'micro-batch')}. The schedule is planned for "
            f"{left.planned:,} steps, {unit}, and has made {left.scheduled:,}. {condition} rate "
            "changed too slowly, and has not come to its end. If the training was stopped early, "
            "the numbers may agree by chance.",
            FIX_OF_RANKS if together else FIX_STEPPED if _of_steps(left, steps) else FIX,
            planned_steps=left.planned,
            schedule_steps=left.scheduled,
            optimizer_steps=steps,
            micro_batches=left.trained,
        )

    def _risen_again(self, record: StepRecord) -> Outcome:
        at, rate = record.scheduled or 0, number(record.lr)
        total = record.schedule_total or 0
        without = unplanned(record)
        if without is not None or rate is None:
            return without or OK
        if at < self._turn:  # another schedule
            self._lowest, self._turn, self._risen = math.inf, 0, False
        if rate > self._highest and not self._risen:  # a warm-up begins low, too
            self._highest, self._lowest = rate, math.inf
        near = max(1, NEAR * total)
        if rate < self._lowest and at <= total + near:
            self._lowest, self._turn = rate, at
        is_at_end = total > 0 and abs(self._turn - total) <= near
        fell = self._lowest < LOW * self._highest
        self._risen |= at > total and is_at_end and fell and rate >= AGAIN * self._highest
        if not self._risen:
            return OK
        return finding(
            "info",
            "The learning rate rises again after the end of its schedule",
            f"The schedule is planned for {counted(total, 'step')}, and has made {at:,}. At "
            f"step {self._turn:,} of the schedule the rate was {significant(self._lowest)}, and it "
            f"is {significant(rate)} now. Unless cycles or a new stage are intended, the schedule "
            "is stepped more often than it was planned for, or the training takes longer.",
            FIX_RISEN,
            planned_steps=total,
            schedule_steps=at,
            lr=rate,
            lr_lowest=self._lowest,
            lr_highest=max(self._highest, rate),
        )


def _of_steps(left: LeftOpen, steps: int) -> bool:
    """Whether the plan is closer to the optimizer steps than to the micro-batches."""
    return abs(left.planned - steps) <= abs(left.planned - left.trained)


def _unit(left: LeftOpen, steps: int, ranks: int) -> tuple[str, bool]:
    """What the plan counts, and whether of all ranks; empty if it counts nothing that is known."""
    counts = {"optimizer steps were taken": steps, "micro-batches ran": left.trained}
    unit = min(counts, key=lambda each: abs(left.planned - counts[each]))
    nearest = min(abs(left.planned - n * ranks) for n in counts.values())
    if ranks == 1 or abs(left.planned - counts[unit]) <= nearest:
        about = "" if left.planned == counts[unit] else "about "
        return f"{about}as many as {unit}", False
    of_ranks = (each for each, n in counts.items() if left.planned == n * ranks)
    unit = next(of_ranks, "")  # approximately, any early end may agree
    number = "both" if ranks == 2 else f"all {ranks}"
    return f"as many as {unit} on {number} ranks together" if unit else "", True
