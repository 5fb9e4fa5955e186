"""batch.changed_without_lr"""

from __future__ import annotations

import math

from gradledger_monitor.findings import Outcome
from gradledger_monitor.rules.base import Rule, Window, finding, not_measured, ok
from gradledger_monitor.wire import number

FACTOR, WINDOWS, LR = 1.5, 3, 0.05

FIX = """\
lr = base_lr * (batch / base_batch) ** exponent     # 1: linear, 0.5: root, 0: a decision too"""


class ChangedWithoutLr(Rule):
    """The effective batch changes and the learning rate does not.

    **What it sees**

    Micro-batches per step times ranks moves by a factor of 1.5 or more and stays there for three
    windows, while the learning rate keeps its value to 5 %.

    **Why it matters**

    The gradient noise, and with it the useful learning rate, follows the batch. Whether and how
    the learning rate should follow is a choice (linearly, by its root, not at all); that it was
    not made is worth knowing.

    **What to do**

    Decide it, and write it down in the schedule.

    **When it is silent**

    Longer sequences at an equal number of sequences; a short last window of an epoch; a
    learning rate that moves along.

    **Incidents**

    Lightning-AI/litgpt#1927, axolotl-ai-cloud/axolotl#130
    """

    def __init__(self) -> None:
        self._settled: tuple[int, float] | None = None  # batch, learning rate
        self._new: list[tuple[int, float]] = []

    def judge(self, window: Window) -> Outcome:
        """A new batch, held for three windows, at the old learning rate."""
        facts = window.facts
        rate = number(facts.first.lr)
        if rate is None or not facts.kept:
            return not_measured("learning rate or micro-batches were not seen")
        now = facts.micro_batches * facts.run.world_size, rate
        if self._settled is None:
            self._settled = now
        ratio = now[0] / self._settled[0]
        if 1 / FACTOR < ratio < FACTOR:
            self._settled, self._new = now, []
            return ok()
        self._new = [*self._new, now] if self._new and self._new[-1][0] == now[0] else [now]
        if len(self._new) < WINDOWS:
            return ok()
        before, moved = self._settled, rate / (self._settled[1] or rate or 1.0)
        self._settled, self._new = now, []
        if abs(moved - 1) > LR:
            return ok()
        return finding(
            "warning",
            f"The effective batch changes by {ratio:.3g}, the learning rate does not",
            f"Micro-batches per step over all ranks went from {before[0]} to {now[0]} and stay; "
            f"the learning rate went from {before[1]:.4g} to {rate:.4g} (an exponent of "
            f"{math.log(moved or 1) / math.log(ratio):.2g}).",
            FIX,
            batch_before=before[0],
            batch=now[0],
            lr_before=before[1],
            lr=rate,
        )
