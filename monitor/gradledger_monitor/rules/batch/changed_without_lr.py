"""batch.changed_without_lr"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.model.batch_size import sum_if_complete
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
lr = base_lr * (batch / base_batch) ** exponent     # 1: linear, 0.5: root, 0: a decision too"""


class _Batch:
    """What one step was made of, over all ranks."""

    state: ClassVar[Mapping[str, Any]] = declare(
        micro_batches=int,
        samples=int | None,
        tokens=int | None,
        rate=float,
    )

    def __init__(
        self,
        micro_batches: int = 0,
        samples: int | None = None,
        tokens: int | None = None,
        rate: float = 0.0,
    ) -> None:
        self.micro_batches = micro_batches
        self.samples = samples  # where the loss shows them
        self.tokens = tokens  # padding included
        self.rate = rate

    @classmethod
    def of(cls, facts: StepFacts, rate: float) -> _Batch:
        """Of one step, at its learning rate."""
        sizes = [m.terms[0].size if m.terms else None for _, m in facts.applied]
        positions, ranks = sum_if_complete(sizes), facts.run.world_size
        return cls(
            facts.micro_batches * ranks,
            facts.samples,
            None if positions is None else positions * ranks,
            rate,
        )

    def differs(self, other: _Batch, factor: float) -> bool:
        """Another effective batch, beyond the factor."""
        if self.tokens and other.tokens and not _moved(self.tokens, other.tokens, factor):
            return False
        if self.samples and other.samples:
            return _moved(self.samples, other.samples, factor)
        return _moved(self.micro_batches, other.micro_batches, factor)

    def is_as_large(self, other: _Batch) -> bool:
        """Whether samples and micro-batches are the same."""
        return self.micro_batches == other.micro_batches and self.samples == other.samples


class ChangedWithoutLr(Rule):
    """The effective batch changes and the learning rate does not.

    **What it sees**

    Samples per step over all ranks move by a factor of 1.5 or more and stay there for three
    windows, while the learning rate keeps its value to 5 %. Where the loss was given one flat row
    and the graph does not show how many samples it holds, micro-batches are counted instead.

    **Why it matters**

    The gradient noise, and with it the useful learning rate, follows the batch. Whether and how
    the learning rate should follow is a choice (linearly, by its root, not at all); that it was
    not made is worth knowing.

    **What to do**

    Decide it, and write it down in the schedule.

    **When it is silent**

    Longer sequences at an equal number of sequences; fewer micro-batches of more tokens, as many
    in all; a short last window of an epoch; a learning rate that moves along.

    **Incidents**

    Lightning-AI/litgpt#1927, axolotl-ai-cloud/axolotl#130
    """

    factor = Parameter(1.5, "change of the batch that is reported")
    windows = Parameter(3, "windows for which it must hold")
    lr = Parameter(0.05, "relative change of the learning rate that counts as none")

    state = declare(_settled=_Batch | None, _new=list[_Batch])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._settled: _Batch | None = None
        self._new: list[_Batch] = []

    def evaluate(self, window: Window) -> Outcome:
        """A new batch, held for three windows, at the old learning rate."""
        facts = window.facts
        rate = number(facts.record.lr)
        if rate is None or not facts.applied:
            return not_measured("learning rate or micro-batches were not seen")
        now = _Batch.of(facts, rate)
        before = self._settled or now
        if not now.differs(before, self.factor):
            self._settled, self._new = now, []
            return OK
        self._new = [*self._new, now] if self._new and now.is_as_large(self._new[-1]) else [now]
        if len(self._new) < self.windows:
            return OK
        self._settled, self._new = now, []
        return OK if abs(_ratio(rate, before.rate) - 1) > self.lr else _report(before, now)


def _moved(now: int, before: int, factor: float) -> bool:
    return not 1 / factor < now / before < factor


def _ratio(now: float, before: float) -> float:
    if not before:
        return math.inf if now else 1.0
    return now / before


def _report(before: _Batch, now: _Batch) -> Outcome:
    unit, old, new = "Micro-batches", before.micro_batches, now.micro_batches
    if before.samples and now.samples:
        unit, old, new = "Samples", before.samples, now.samples
    ratio, moved = new / old, _ratio(now.rate, before.rate)
    return finding(
        "warning",
        f"The effective batch changes by {ratio:.3g}, the learning rate does not",
        f"{unit} per step over all ranks went from {old} to {new} and stay; "
        f"the learning rate went from {before.rate:.4g} to {now.rate:.4g} (an exponent of "
        f"{math.log(moved or 1) / math.log(ratio):.2g}).",
        FIX,
        batch_before=old,
        batch=new,
        lr_before=before.rate,
        lr=now.rate,
    )
