"""scheduler.step_every_microbatch"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.schedule.rates import learning_rates
from gradledger_monitor.rules.state import declare

# A loop whose last epoch is longer than planned is a little past the end. A schedule that is
# planned in optimizer steps, and stepped on each micro-batch, makes K times its plan.
PAST_THE_END = 1.25

FIX = """\
if (i + 1) % K == 0:
    optimizer.step()
    scheduler.step()             # once per optimizer step
    optimizer.zero_grad()"""


class StepEveryMicrobatch(Rule):
    """The LR scheduler is stepped on every micro-batch.

    **What it sees**

    A call of the scheduler between all micro-batches of a window of K > 1. This is a warning once
    the schedule has ended, and the training goes on: it has made 1.25 times the steps that it is
    planned for, or every learning rate, above 0 before, was 0 at two steps in a row. Until then,
    and if the hooks cannot read the plan, the schedule may be planned in micro-batches, which is no
    mistake: a note. The plan is read from ``total_steps``, ``T_max`` or ``total_iters``, and, once
    the rate has come down, from the numbers that a function of ``LambdaLR`` holds.

    **Why it matters**

    A schedule planned in optimizer steps ends after 1/K of the run: warm-up is K times too
    short, and the learning rate reaches its end while most of the data is still to come.

    **What to do**

    Step the scheduler once per optimizer step, or plan it in micro-batches.

    **When it is silent**

    K = 1; one call per window, by any number of steps; ``CyclicLR``, which is defined in batches; a
    schedule whose step is passed its epoch, as ``CosineAnnealingWarmRestarts`` can be.

    **Incidents**

    huggingface/accelerate#963, h2oai/h2o-llmstudio#663, karpathy/nanochat#775
    """

    points_at = ("schedule",)
    inhibits = ("schedule.zero_lr", "schedule.planned_in_other_steps")

    state = declare(_zero=bool, _positive=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._zero = False  # all learning rates of the window before were 0
        self._positive = False  # one was not, in some window

    def after_gap(self) -> None:
        """The window before is missing."""
        self._zero = False

    def evaluate(self, window: Window) -> Outcome:
        """A schedule call in every gap between the window's backwards."""
        record, was_zero = window.facts.record, self._zero
        rates = learning_rates(record)
        self._positive |= any(rates)
        self._zero = self._positive and bool(rates) and not any(rates)
        if "schedule" in record.missing:
            return not_measured(record.missing["schedule"])
        calls = window.facts.calls("schedule")
        if not calls and not window.past:
            return not_applicable("no LR scheduler")
        if not calls or window.facts.micro_batches < 2:
            return OK
        positions = {event.after for event in calls}
        between = range(window.facts.applied_from + 1, len(record.micro_batches))
        if not positions.issuperset(between):
            return OK
        k = window.facts.micro_batches
        total, count = record.schedule_total, record.scheduled
        is_past = bool(total and count and count >= PAST_THE_END * total)
        is_over = is_past or (was_zero and self._zero)
        end = _end(count, total if is_past else None, window.facts.step)
        return finding(
            "warning" if is_over else "info",
            "The LR scheduler steps on every micro-batch",
            f"scheduler.step() ran between all {k} micro-batches of one optimizer step. "
            f"{end if is_over else _condition(k)}",
            FIX,
            micro_batches=k,
            schedule_after=sorted(positions)[:32],
            schedule_steps=count,
            planned_steps=total,
            lr=number(record.lr),
        )


def _end(count: int | None, total: int | None, step: int) -> str:
    after = f"after {counted(step - 1, 'optimizer step')}"
    if total:
        return (
            f"The schedule is planned for {counted(total, 'step')}, and has made {count:,} "
            f"{after}: it has ended, and the training goes on."
        )
    return f"The learning rate has come down to 0 {after}, and the training goes on."


def _condition(k: int) -> str:
    return (
        f"A schedule that is planned in optimizer steps then advances {k} times too fast; one that "
        "is planned in micro-batches is right."
    )
