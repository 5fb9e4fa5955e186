"""Running statistics of a positive series, in logarithms (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.rules.state import declare


class LogTrend:
    """Exponential moving mean and variance of log(x), with ``keep`` as the weight of the past."""

    state: ClassVar[Mapping[str, Any]] = declare(
        _least_weight=float, count=int, _mean=float, _variance=float
    )

    def __init__(self, keep: float = 0.97) -> None:
        self._least_weight = 1 - keep  # of a new value
        self.count = 0
        self._mean = 0.0
        self._variance = 0.0

    def z(self, value: float) -> float:
        """How many standard deviations ``value`` lies above the running mean."""
        deviation = math.sqrt(self._variance) or math.inf
        return (math.log(value) - self._mean) / (deviation if deviation > FLOOR else FLOOR)

    def ratio(self, value: float) -> float:
        """``value`` over the running geometric mean."""
        return value / math.exp(self._mean)

    def add(self, value: float) -> None:
        """Take the next value in."""
        x = math.log(value)
        self.count += 1
        weight = max(self._least_weight, 1 / self.count)
        delta = x - self._mean
        self._mean += weight * delta
        self._variance = (1 - weight) * (self._variance + weight * delta * delta)


FLOOR = 0.05  # of the deviation: a series that hardly moves must not make every move a spike
