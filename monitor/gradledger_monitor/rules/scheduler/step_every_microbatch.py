"""scheduler.step_every_microbatch"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.framework_fixes import PREPARED_SCHEDULE, framework
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.schedule.rates import learning_rates
from gradledger_monitor.rules.state import declare

# A loop whose last epoch is longer than planned is a little past the end. A schedule that is
# planned in optimizer steps, and stepped on each micro-batch, makes K times its plan.
PAST_THE_END = 1.25

STAYS = 8  # steps at one rate, after which a schedule may have ended
LONGEST = 1.25  # of the (K - 1) times as many steps: a training that goes on for longer
SEVERAL = 3  # steps in a row with several of the schedule
LOW = 0.5  # of the highest rate: a warm-up stays at the highest
RAMPS = 2  # windows in which it moved in all gaps: more than these
EDGES = 3  # windows in which it moved in some gaps: a ramp of a schedule begins or ends there

FIX = """\
if (i + 1) % K == 0:
    optimizer.step()
    scheduler.step()             # once per optimizer step, if it is planned in these
    optimizer.zero_grad()"""

FIX_BY_HAND = """\
rate = planned(i // K)           # by optimizer step, as the schedule is planned
for group in optimizer.param_groups:
    group["lr"] = rate"""

FIX_SEVERAL = """\
# plan the schedule for all calls of scheduler.step(): several for each optimizer step
scheduler = get_scheduler(name, optimizer, num_training_steps=steps * calls_per_step)"""


class StepEveryMicrobatch(Rule):
    """The learning rate moves with every micro-batch, and its schedule ends too early.

    **What it sees**

    A call of the scheduler between all micro-batches of a window of K > 1. This is a warning once
    the schedule has ended, and the training goes on: it has made 1.25 times the steps that it is
    planned for, or every learning rate, above 0 before, was 0 at two steps in a row. Until then,
    and if the hooks cannot read the plan, the schedule may be planned in micro-batches, which is no
    mistake: a note. The plan is read from ``total_steps``, ``T_max`` or ``total_iters``, and, once
    the rate has come down, from the numbers that a function of ``LambdaLR`` holds.

    A rate that is no scheduler's of PyTorch, such as ``group["lr"] = planned(i)`` or the
    ``step_update`` of timm: it moved between all micro-batches of the steps at which it moved, but
    for 3, at which a ramp may begin or end, and came down in a ramp. It has stayed below half of
    its highest value since, for K - 1 times as many steps. That is what a plan in optimizer steps
    comes to if micro-batches are counted, also if it holds the rate for a while. It is information
    until the rate has stayed there for twice as many steps, of a window of at least 3.

    And a scheduler that makes several steps for each optimizer step, also of one micro-batch, at
    three steps in a row, once it has made 1.25 times the steps of its plan.

    **Why it matters**

    A schedule planned in optimizer steps ends after 1/K of the run: warm-up is K times too
    short, and the learning rate reaches its end while most of the data is still to come.

    **What to do**

    Step the scheduler once per optimizer step, or plan it in micro-batches.

    **When it is silent**

    One call per window and step of the optimizer; ``CyclicLR``, which is defined in batches; a
    schedule whose step is passed its epoch, as ``CosineAnnealingWarmRestarts`` can be. A rate that
    is set for each micro-batch from the part of the epoch that has passed, and a warm-up by hand
    that is counted in micro-batches: nothing states its plan. A rate that has stayed for longer
    than micro-batches that are counted as steps explain.

    **Incidents**

    huggingface/accelerate#963, h2oai/h2o-llmstudio#663, karpathy/nanochat#775
    """

    points_at = ("schedule", "step")
    inhibits = ("schedule.zero_lr", "schedule.planned_in_other_steps")

    state = declare(
        _zero=bool,
        _positive=bool,
        _rate=float | None,
        _highest=float,
        _at=int | None,
        _moved=int,
        _in_all=int,
        _in_part=int,
        _ramp=int,
        _k=int | None,
        _several=int,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._zero = False  # all learning rates of the window before were 0
        self._positive = False  # one was not, in some window
        self._rate: float | None = None  # of the first group, at the step before
        self._highest = 0.0  # of these
        self._at: int | None = None  # step of the schedule, at the window before
        self._moved = 0  # the last step at which the rate moved
        self._in_all = 0  # windows in which it moved between all micro-batches
        self._in_part = 0  # windows in which it moved between some, or before which it did
        self._ramp = 0  # the last step at which it moved between all
        self._k: int | None = None  # micro-batches of these windows; 0: they differ
        self._several = 0  # steps in a row for which the schedule made several

    def after_gap(self) -> None:
        """The window before is missing."""
        self._zero, self._at, self._several = False, None, 0

    def evaluate(self, window: Window) -> Outcome:
        """Between the window's backwards: a schedule call in every gap, or another rate."""
        record, was_zero = window.facts.record, self._zero
        rates = learning_rates(record)
        self._positive |= any(rates)
        self._zero = self._positive and bool(rates) and not any(rates)
        self._note(window)
        at, now = self._at, record.scheduled
        advance = 0 if at is None or now is None else now - at
        self._at, self._several = now, self._several + 1 if advance > 1 else 0
        if "schedule" in record.missing:
            return not_measured(record.missing["schedule"])
        calls = window.facts.calls("schedule")
        k = window.facts.micro_batches
        if not calls:
            by_hand = self._ended_by_hand(window) if record.scheduled is None else None
            none = not window.past and by_hand is None
            return not_applicable("no LR scheduler") if none else by_hand or OK
        positions = {event.after for event in calls}
        between = range(window.facts.applied_from + 1, len(record.micro_batches))
        if k < 2 or not positions.issuperset(between):
            return _steps_several(window, advance) if self._several >= SEVERAL else OK
        total, count = record.schedule_total, record.scheduled
        is_over = _is_past(record) or (was_zero and self._zero)
        end = _end(count, total if _is_past(record) else None, window.facts.step)
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

    def _note(self, window: Window) -> None:
        """When the first rate moved, and whether it did so with each micro-batch."""
        record = window.facts.record
        rate, before = number(record.lr), self._rate
        if rate is None:
            return
        self._rate, self._highest = rate, max(self._highest, rate)
        if not record.rate_moves and before in (None, rate):
            return
        self._moved = window.facts.step
        in_all = 0 < len(record.micro_batches) - 1 <= record.rate_moves
        if in_all:
            k = window.facts.micro_batches
            self._k = k if self._k in (None, k) else 0
            self._in_all, self._ramp = self._in_all + 1, window.facts.step
        else:
            self._in_part += 1

    def _ended_by_hand(self, window: Window) -> Outcome | None:
        """A rate that moved with each micro-batch at first, and has stayed where it came to."""
        k, rate, moved = window.facts.micro_batches, self._rate, self._moved
        stays = window.facts.step - moved
        if k < 2 or k != self._k or rate is None or not 0 <= rate < LOW * self._highest:
            return None
        if self._in_all <= RAMPS or self._in_part > EDGES or stays < STAYS:
            return None
        if moved > self._ramp + 1:  # it came down at once
            return None
        if not (k - 1) * (moved - 1) - 1 <= stays <= LONGEST * (k - 1) * moved + STAYS:
            return None
        return finding(
            "warning" if k > 2 and stays >= 2 * moved else "info",
            "The learning rate moves with every micro-batch, and its schedule has ended",
            f"At {counted(self._in_all, 'step')}, the learning rate moved between all {k} "
            f"micro-batches of the step. Step {moved:,} was the last at which it moved. It has "
            f"stayed at {significant(rate)} for {counted(stays, 'step')} since; its highest value "
            f"was {significant(self._highest)}. This is what a schedule in optimizer steps does "
            "where micro-batches are counted: it ends after about "
            f"1/{k} of the training. If the schedule is planned to end there, it is right.",
            FIX_BY_HAND,
            micro_batches=k,
            last_moved=moved,
            steps_since=stays,
            lr=rate,
            lr_highest=self._highest,
        )


def _is_past(record: StepRecord) -> bool:
    total, count = record.schedule_total, record.scheduled
    return bool(total and count and count >= PAST_THE_END * total)


def _steps_several(window: Window, advance: int) -> Outcome:
    """The schedule makes several steps for one of the optimizer, and has ended."""
    record = window.facts.record
    total, count = record.schedule_total, record.scheduled
    if not _is_past(record):
        return OK
    run = window.facts.run
    is_by_process = framework(run) == "accelerate" and advance == run.world_size
    return finding(
        "warning",
        f"The LR scheduler makes {advance} steps for each optimizer step",
        f"Between the last optimizer step and this one, the schedule made {advance} steps. "
        f"{_end(count, total, window.facts.step)}",
        PREPARED_SCHEDULE if is_by_process else FIX_SEVERAL,
        schedule_advance=advance,
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
