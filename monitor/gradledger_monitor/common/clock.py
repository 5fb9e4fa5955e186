"""The time of the service: Unix seconds that do not jump while the process lives.

If the machine's clock is set back, a step that waits for its ranks would otherwise wait forever.
"""

from __future__ import annotations

import time

# CLOCK_BOOTTIME also counts while the machine sleeps; not every system has it
_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_OFFSET = time.time() - time.clock_gettime(_MONOTONIC)

# Earlier times are of clocks that were never set, or of logs without times: they are not known.
EARLIEST_KNOWN = 946_684_800.0  # the beginning of the year 2000


def now() -> float:
    """Unix seconds: the machine's clock when the process started, plus the time elapsed since."""
    return _OFFSET + time.clock_gettime(_MONOTONIC)
