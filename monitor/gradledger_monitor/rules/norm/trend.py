"""Running statistics of a positive series, in logarithms (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.rules.state import declare


class LogTrend:
    """Exponential moving mean and variance of log(x); ``decay`` is the weight of the past.

    The first values are averaged with equal weights, until 1 / count is below 1 - decay. The
    variance is updated as in T. Finch, "Incremental calculation of weighted mean and variance",
    2009.
    """

    state: ClassVar[Mapping[str, Any]] = declare(
        _least_weight=float, count=int, _mean=float, _variance=float
    )

    def __init__(self, decay: float = 0.97) -> None:
        self._least_weight = 1 - decay  # of a new value
        self.count = 0
        self._mean = 0.0
        self._variance = 0.0

    def z(self, value: float) -> float:
        """How many standard deviations log(value) is above the running mean."""
        deviation = math.sqrt(self._variance) or math.inf
        return (math.log(value) - self._mean) / (deviation if deviation > FLOOR else FLOOR)

    def ratio(self, value: float) -> float:
        """``value`` over the running geometric mean."""
        return value / math.exp(self._mean)

    def add(self, value: float) -> None:
        """Add the next value of the series."""
        x = math.log(value)
        self.count += 1
        weight = max(self._least_weight, 1 / self.count)
        delta = x - self._mean
        self._mean += weight * delta
        self._variance = (1 - weight) * (self._variance + weight * delta * delta)


FLOOR = 0.05  # least deviation of the logarithm: noise of a nearly constant series is no spike
