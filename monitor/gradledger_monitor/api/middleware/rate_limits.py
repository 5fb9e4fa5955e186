"""Rate limits of callers: token buckets by name, in bounded memory."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from gradledger_monitor.common.problems import Problem

MAX_NAMES = 10_000
BURST_SECONDS = 2.0


class RateLimiter:
    """Allows each name ``rate`` requests a second and ``burst`` at once. Not thread-safe."""

    def __init__(
        self,
        rate: float,
        burst: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * BURST_SECONDS if burst is None else burst)
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when

    def wait(self, name: str) -> float:
        """Take a request and return 0, or return the seconds to wait. A rate of 0 is unlimited."""
        if not self._rate:
            return 0.0
        now = self._now()
        tokens, then = self._buckets.pop(name, (self._burst, now))
        tokens = min(self._burst, tokens + (now - then) * self._rate)
        allowed = tokens >= 1
        self._buckets[name] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > MAX_NAMES:  # drop the one that was used least recently
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) / self._rate

    def take(self, name: str) -> None:
        """Take a request. Raises a problem with ``Retry-After``."""
        seconds = math.ceil(self.wait(name))
        if seconds:
            detail = f"The rate limit is exceeded. Retry after {seconds} s."
            raise Problem(429, detail, retry_after=seconds)
