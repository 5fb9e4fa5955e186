"""How far the script has raised the weight of a loss, so that larger gradients are intended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.state import declare

RAISED = 1.5  # times the largest weight so far
MOST = 64  # losses whose weights are compared
MARGIN = 2.0  # times the norm before: batches differ
LONGEST = 1e5  # times in all: a weight that is raised further, as by an adaptive rule, runs away


class LossWeights:
    """The largest constant that multiplies each loss so far. A part of the state of rules.

    A ramp (annealing of a divergence, warm-up of an auxiliary loss) raises it, and the gradient
    norm with it, by its own factor at most. An explosion does not change the constant.
    """

    state: ClassVar[Mapping[str, Any]] = declare(
        _by_loss=dict[str, float], _norm=float, _raised=float
    )

    def __init__(self) -> None:
        self._by_loss: dict[str, float] = {}
        self._norm = 0.0  # of the step before
        self._raised = 1.0  # the product of all ratios

    def rise(self, facts: StepFacts, norm: float) -> float:
        """The ratio to the largest one before, if it explains this norm: at least 1.

        Infinity if a loss is new: any norm may be its own.
        """
        ratio, before, self._norm = self._largest_ratio(facts), self._norm, norm
        if not before or ratio == 1 or math.isinf(ratio):
            return ratio if before else 1.0
        self._raised *= ratio
        return ratio if norm <= MARGIN * ratio * before and self._raised <= LONGEST else 1.0

    def _largest_ratio(self, facts: StepFacts) -> float:
        ratio = 1.0
        for objective in facts.objectives:
            coefficient = objective.coefficient
            if coefficient is None or not coefficient:
                continue
            largest = self._by_loss.get(objective.name)
            if largest is not None and abs(coefficient) <= RAISED * largest:
                continue
            if largest is not None or len(self._by_loss) < MOST:
                self._by_loss[objective.name] = abs(coefficient)
                ratio = max(ratio, abs(coefficient) / largest if largest else math.inf)
        return ratio
