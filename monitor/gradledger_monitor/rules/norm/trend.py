"""Running statistics of a positive series, in logarithms (pure)."""

from __future__ import annotations

import heapq
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


class FarthestValues:
    """The largest values of a series, and how far a further one may be expected to reach.

    The Hill estimator of a tail (B. Hill, "A simple general approach to inference about the tail of
    a distribution", 1975): the mean logarithm of the largest values over the smallest of them is
    the inverse of the tail's exponent. Of n values, about log(n) are larger than all before them; a
    new one is more than f times the one before it with a probability of f ** -exponent.
    """

    state: ClassVar[Mapping[str, Any]] = declare(count=int, _largest=list[float])

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self.count = 0
        self._largest: list[float] = []  # a heap

    def add(self, value: float) -> None:
        """Add the next value, in standard deviations; one below ``IN_TAIL`` is in no tail."""
        self.count += 1
        if len(self._largest) < self._size:
            if value > IN_TAIL:
                heapq.heappush(self._largest, value)
        elif value > self._largest[0]:
            heapq.heapreplace(self._largest, value)

    def reach(self, chance: float) -> float:
        """What a series like this one exceeds with this probability, at most.

        0 if too few values are in the tail to estimate it: then it bounds nothing.
        """
        if len(self._largest) < self._size:
            return 0.0
        least, *others = sorted(self._largest)
        inverse = sum(math.log(value / least) for value in others) / len(others)
        factor: float = (math.log(self.count) / chance) ** inverse
        return others[-1] * factor


IN_TAIL = 1.0  # standard deviations: a series that falls may have few values above its mean
FLOOR = 0.05  # least deviation of the logarithm: noise of a nearly constant series is no spike
