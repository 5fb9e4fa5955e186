"""When a failed delivery is retried (pure).

The delays are those that Standard Webhooks recommends: 5 seconds to 24 hours.
"""

from __future__ import annotations

from collections.abc import Sequence

DELAYS = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
JITTER = 0.2  # of the delay, so that messages that failed together are not retried together


def next_attempt(delays: Sequence[float], failures: int, now: float, chance: float) -> float | None:
    """The Unix time of the next attempt after ``failures`` failures; None after the last one.

    ``chance`` is a random number from 0 to 1.
    """
    if failures > len(delays):
        return None
    return now + delays[failures - 1] * (1 + JITTER * (2 * chance - 1))
