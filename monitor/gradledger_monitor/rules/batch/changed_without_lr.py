"""batch.changed_without_lr"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.model.batch_size import sum_if_complete
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import (
    OK,
    Rule,
    Window,
    about_steps,
    finding,
    not_applicable,
    not_measured,
)
from gradledger_monitor.rules.state import declare

FIX = """\
lr = base_lr * (batch / base_batch) ** exponent     # 1: linear, 0.5: square root, 0: unchanged"""


RECENT, USUAL_SHARE = 24, 0.75


class _Batch:
    """The size of one step's batch over all ranks, and its learning rate."""

    state: ClassVar[Mapping[str, Any]] = declare(
        micro_batches=int,
        samples=int | None,
        tokens=int | None,
        rate=float,
        step=int,
    )

    def __init__(
        self,
        micro_batches: int = 0,
        samples: int | None = None,
        tokens: int | None = None,
        rate: float = 0.0,
        step: int = 0,
    ) -> None:
        self.micro_batches = micro_batches
        self.samples = samples  # None if the loss does not show them
        self.tokens = tokens  # padding included
        self.rate = rate
        self.step = step

    @classmethod
    def of(cls, facts: StepFacts, rate: float) -> _Batch:
        """The batch of one step."""
        sizes = [m.terms[0].size if m.terms else None for _, m in facts.applied]
        positions, ranks = sum_if_complete(sizes), facts.run.world_size
        return cls(
            facts.micro_batches * ranks,
            facts.samples,
            None if positions is None else positions * ranks,
            rate,
            facts.step,
        )

    @property
    def size(self) -> int:
        """Samples, or micro-batches if they are not known."""
        return self.samples or self.micro_batches

    def differs(self, other: _Batch, factor: float) -> bool:
        """Whether the effective batch differs by the factor or more."""
        if self.tokens and other.tokens and not _moved(self.tokens, other.tokens, factor):
            return False
        if self.samples and other.samples:
            return _moved(self.samples, other.samples, factor)
        return _moved(self.micro_batches, other.micro_batches, factor)

    def is_as_large(self, other: _Batch) -> bool:
        """Whether samples and micro-batches are the same."""
        return self.micro_batches == other.micro_batches and self.samples == other.samples


class _Ramp:
    """The number of micro-batches over the first steps, while it only grows, one by one.

    A warm-up of the batch (YOLO's) grows at about equal intervals of micro-batches, so that no
    level has many more steps than the ones before it, except for the last.
    """

    state: ClassVar[Mapping[str, Any]] = declare(
        micro_batches=int, levels=list[int], after_gap=bool
    )

    def __init__(self) -> None:
        self.micro_batches = 0
        self.after_gap = False  # the windows before the next one are missing
        self.levels: list[int] = []  # windows of each; a single 0 if it is over, or was none

    def see(self, micro_batches: int, at_least: int) -> None:
        """Take the next window in; the last level may last ``at_least`` windows."""
        if not self.levels:
            self.levels = [1]
        elif micro_batches == self.micro_batches:
            self.levels[-1] += self.levels != [0]
        elif self._grows(micro_batches):
            self.levels.append(1)
        else:
            self.end()
        self.micro_batches, self.after_gap = micro_batches, False
        *earlier, last = self.levels
        if earlier and last > max(at_least, 2 * max(earlier)):
            self.end()

    def _grows(self, micro_batches: int) -> bool:
        if self.levels == [0]:
            return False
        grown = micro_batches - self.micro_batches
        return grown > 0 if self.after_gap else grown == 1

    def end(self) -> None:
        """What follows is no part of a ramp."""
        self.levels = [0]

    @property
    def may_begin(self) -> bool:
        """Whether it grew once, and not long ago: it may grow again."""
        return len(self.levels) == 2

    @property
    def has_grown(self) -> bool:
        """Whether it grew more than once."""
        return len(self.levels) > 2


class ChangedWithoutLr(Rule):
    """The effective batch changes and the learning rate does not.

    **What it sees**

    Samples per step over all ranks change by a factor of 1.5 or more and stay there for three
    windows, while the learning rate stays within 5% of its value. It is information if only the
    number of micro-batches grows, which many programs do on purpose. If the loss has one flat row
    and the graph does not show the number of samples, micro-batches are counted instead.

    **Why it matters**

    The gradient noise, and with it the useful learning rate, depends on the batch size. Whether
    and how the learning rate should follow (linearly, by the square root, not at all) is a
    choice, and here it may not have been made.

    **What to do**

    Decide, and write the decision into the schedule.

    **When it is silent**

    Batches of many sizes; longer sequences at an equal number of sequences; fewer micro-batches
    of more tokens, with the same total; a short last window of an epoch; a learning rate that
    changes, too; a change within the first windows; a warm-up of the batch, in which the number
    of micro-batches grows one by one from the first step on (if it grows once, the finding waits
    until it has stayed for twice as long).

    **Incidents**

    Lightning-AI/litgpt#1927, axolotl-ai-cloud/axolotl#130
    """

    points_at = ("step",)
    by_window = False
    factor = Parameter(1.5, "factor by which the batch changes")
    windows = Parameter(3, "windows for which the new batch size must stay")
    before = Parameter(6, "windows that must have had the old batch size, three quarters of them")
    lr = Parameter(0.05, "relative change of the learning rate that is ignored")

    state = declare(_settled=_Batch | None, _new=list[_Batch], _sizes=deque[int], _ramp=_Ramp)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._settled: _Batch | None = None
        self._new: list[_Batch] = []
        self._sizes: deque[int] = deque(maxlen=RECENT)  # of the latest windows
        self._ramp = _Ramp()

    def after_gap(self) -> None:
        """The windows just before the next one are missing: the batch may have grown in them."""
        self._ramp.after_gap = True

    def evaluate(self, window: Window) -> Outcome:
        """A new batch size that stays, at the old learning rate."""
        facts = window.facts
        rate = number(facts.record.lr)
        if rate is None and facts.record.by_hand:
            return not_applicable("the loop updates its parameters itself: no optimizer has a rate")
        if any(record.join is not None for record in facts.records.values()):
            return not_applicable("in a Join context, ranks run out of data")
        if not facts.applied:
            return not_measured("no micro-batches")
        self._ramp.see(facts.micro_batches, self.windows)
        now = _Batch.of(facts, rate or 0.0)
        before = self._settled or now
        self._sizes.append(now.size)
        if not now.differs(before, self.factor):
            self._settled, self._new = now, []
            return OK
        self._new = [*self._new, now] if self._new and now.is_as_large(self._new[-1]) else [now]
        if len(self._new) < self.windows or self._ramp.may_begin:
            return OK
        earlier = list(self._sizes)[: -len(self._new)]
        steps = [batch.step for batch in self._new]
        self._settled, self._new = now, []
        if self._ramp.has_grown or not _was_fixed(earlier, self.before):
            return OK
        if rate is None:
            return not_measured("the batch changes, and the learning rate is not known")
        if abs(_ratio(rate, before.rate) - 1) > self.lr:
            return OK
        return about_steps(_report(before, now), steps)


def _was_fixed(sizes: list[int], windows: int) -> bool:
    """Whether windows had one size, some tails left out: in some loops every batch has another."""
    most = max(map(sizes.count, set(sizes)), default=0)
    return most >= windows and most >= USUAL_SHARE * len(sizes)


def _moved(now: int, before: int, factor: float) -> bool:
    return not 1 / factor < now / before < factor


def _ratio(now: float, before: float) -> float:
    if not before:
        return math.inf if now else 1.0
    return now / before


def _only_accumulates_more(before: _Batch, now: _Batch) -> bool:
    """Whether K grows, and each micro-batch is as large as before: often the program's schedule.

    A batch that grows at one learning rate is a known alternative to a rate that decays (Smith et
    al. 2018, "Don't Decay the Learning Rate, Increase the Batch Size").
    """
    if now.micro_batches <= before.micro_batches:
        return False
    if not (now.samples and before.samples):
        return True
    return now.samples * before.micro_batches == before.samples * now.micro_batches


def _report(before: _Batch, now: _Batch) -> Outcome:
    unit, old, new = "Micro-batches", before.micro_batches, now.micro_batches
    if before.samples and now.samples:
        unit, old, new = "Samples", before.samples, now.samples
    ratio, moved = new / old, _ratio(now.rate, before.rate)
    first, last = significant(before.rate), significant(now.rate)
    rates = f"stayed at {last}" if first == last else f"went from {first} to {last}"
    exponent = math.log(moved or 1) / math.log(ratio) + 0.0  # no -0
    return finding(
        "info" if _only_accumulates_more(before, now) else "warning",
        f"The effective batch changes by a factor of {ratio:.3g}, the learning rate does not",
        f"{unit} per step over all ranks went from {old:,} to {new:,}, while the learning rate "
        f"{rates}. That is a scaling exponent of {exponent:.2g} (1: linear, 0.5: square root).",
        FIX,
        batch_before=old,
        batch=new,
        lr_before=before.rate,
        lr=now.rate,
    )
