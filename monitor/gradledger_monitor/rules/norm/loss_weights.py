"""Whether the script has raised the weight of a loss, so that larger gradients are intended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.state import declare

RAISED = 1.5  # times the largest weight so far
MOST = 64  # losses whose weights are compared


class LossWeights:
    """The largest constant that multiplies each loss so far. A part of the state of rules.

    A ramp (annealing of a divergence, warm-up of an auxiliary loss) raises it, and the gradient
    norm with it. Norms from before are no reference for those after it. An explosion does not
    change the constant.
    """

    state: ClassVar[Mapping[str, Any]] = declare(_by_loss=dict[str, float], _steps=int)

    def __init__(self) -> None:
        self._by_loss: dict[str, float] = {}
        self._steps = 0

    def have_risen(self, facts: StepFacts) -> bool:
        """Whether one of them is larger in this window than in all before, or is new."""
        risen = False
        for objective in facts.objectives:
            coefficient = objective.coefficient
            if coefficient is None or not coefficient:
                continue
            largest = self._by_loss.get(objective.name)
            if largest is not None and abs(coefficient) <= RAISED * largest:
                continue
            if largest is not None or len(self._by_loss) < MOST:
                self._by_loss[objective.name] = abs(coefficient)
                risen = risen or self._steps > 0
        self._steps += 1
        return risen
