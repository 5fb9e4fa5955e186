"""Training losses and evaluations of a whole run, bounded in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

# An evaluation may come so many steps late, and finds the losses before it still there, also
# while the judge is so many steps ahead of what it has written.
LATE_STEPS = 2_048
BEFORE_EVALUATION = 10  # steps seen before it whose losses an evaluation is compared with


@dataclass
class RunHistory:
    """The run as a whole: evaluations, and the training losses of the first optimizer by step.

    Of a long run, the losses that stay are the last ones and those just before evaluations.
    """

    losses: dict[int, float] = field(default_factory=dict)
    evaluations: dict[str, dict[int, float]] = field(
        default_factory=dict
    )  # metric -> step -> value

    def add(self, step: int, loss: float) -> None:
        """The next training loss."""
        self.losses[step] = loss
        if step % LATE_STEPS == 0:
            self._forget(step - 2 * LATE_STEPS)

    def steps_before(self, evaluation: int, order: Sequence[int]) -> Sequence[int]:
        """The last steps seen before an evaluation; none as long as more of them may come.

        ``order`` holds the steps of all losses, ascending.
        """
        end = bisect_right(order, evaluation)
        if end == len(order) and (not order or order[-1] <= evaluation - BEFORE_EVALUATION):
            return ()
        return order[max(0, end - BEFORE_EVALUATION) : end]

    def _forget(self, before: int) -> None:
        order = sorted(self.losses)
        evaluated = {step for values in self.evaluations.values() for step in values}
        near = {step for each in evaluated for step in self.steps_before(each, order)}
        self.losses = {s: v for s, v in self.losses.items() if s > before or s in near}
