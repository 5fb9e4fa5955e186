"""Training losses and evaluations of a whole run, bounded in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

# An evaluation may arrive this many steps late and still have the losses before it, also while
# the evaluator is this many steps ahead of what it has stored.
LATE_STEPS = 2_048
BEFORE_EVALUATION = 10  # steps before an evaluation with whose losses it is compared


@dataclass
class RunHistory:
    """Evaluations, and the training losses of the first optimizer by step.

    Of a long run, it holds the last losses and those just before evaluations.
    """

    losses: dict[int, float] = field(default_factory=dict)
    evaluations: dict[str, dict[int, float]] = field(
        default_factory=dict
    )  # metric -> step -> value

    def add(self, step: int, loss: float) -> None:
        """Add the next training loss."""
        self.losses[step] = loss
        if step % LATE_STEPS == 0:
            self._discard_before(step - 2 * LATE_STEPS)

    def steps_before(self, evaluation: int, order: Sequence[int]) -> Sequence[int]:
        """The last steps before an evaluation; none as long as more of them may arrive.

        ``order`` holds the steps of all losses, ascending.
        """
        end = bisect_right(order, evaluation)
        if end == len(order) and (not order or order[-1] <= evaluation - BEFORE_EVALUATION):
            return ()
        return order[max(0, end - BEFORE_EVALUATION) : end]

    def _discard_before(self, step: int) -> None:
        order = sorted(self.losses)
        evaluated = {at for values in self.evaluations.values() for at in values}
        needed = {s for evaluation in evaluated for s in self.steps_before(evaluation, order)}
        self.losses = {s: v for s, v in self.losses.items() if s > step or s in needed}
