"""How often a caller may ask: token buckets by name, in bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from gradledger_monitor.common.problems import Problem

MOST_NAMES = 10_000
BURST_SECONDS = 2.0


class RateLimiter:
    """Allows ``rate`` a second for each name, and ``burst`` at once. Not for several threads."""

    def __init__(
        self,
        rate: float,
        burst: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * BURST_SECONDS if burst is None else burst)
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # at which moment

    def wait(self, name: str) -> float:
        """Seconds to wait before the next; 0 takes one. A rate of 0 limits nothing."""
        if not self._rate:
            return 0.0
        now = self._now()
        left, then = self._left.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        allowed = left >= 1
        self._left[name] = (left - 1 if allowed else left, now)
        if len(self._left) > MOST_NAMES:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate

    def take(self, name: str) -> None:
        """Take one. Raises a problem that says when to come again."""
        seconds = self.wait(name)
        if seconds:
            raise Problem(429, "Too many requests; come again a little later.", retry_after=seconds)
