"""The time of the service: Unix seconds that do not jump while the process lives.

The machine's clock may be set back, and then a step that waits for its ranks would wait for ever.
"""

from __future__ import annotations

import time

# goes on while the machine sleeps, where there is such a clock
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_AHEAD = time.time() - time.clock_gettime(_STEADY)


def now() -> float:
    """Unix seconds, as the machine's clock had them when the process began, and counted since."""
    return _AHEAD + time.clock_gettime(_STEADY)
