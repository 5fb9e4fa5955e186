"""Connections that ended early or were ended: counted, and logged in one line a minute.

Anybody can abort uploads and send what is no HTTP, as often as the line allows: a traceback or a
line for each would fill the disk with logs.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from prometheus_client import Counter as Metric

log = logging.getLogger(__name__)

LINE_SECONDS = 60.0
REASONS = {
    "aborted": "uploads aborted",
    "invalid": "requests that are not valid HTTP",
    "header_timeout": "headers that came too slowly",
    "body_timeout": "bodies that came too slowly",
    "send_timeout": "answers that were not read",
    "too_many": "connections beyond the bound on their number",
}
# What uvicorn logs for each such request, and we count.
_OF_UVICORN = (
    "Invalid HTTP request received.",
    "Unsupported upgrade request.",
    "No supported WebSocket library detected.",
)


class ConnectionLog:
    """Counts by reason. For the event loop."""

    def __init__(self, metric: Metric, now: Callable[[], float] = time.monotonic) -> None:
        self._counters = {reason: metric.labels(reason) for reason in REASONS}
        self._now = now
        self._since_last: Counter[str] = Counter()
        self._last_client = ""
        self._last_line = -LINE_SECONDS

    def count(self, reason: str, client: str) -> None:
        """Count one; the first is logged at once, further ones together after a minute."""
        self._counters[reason].inc()
        self._since_last[reason] += 1
        self._last_client = client
        self.report()

    def report(self) -> None:
        """Log what was counted since the last line, unless that was within the last minute."""
        now = self._now()
        if not self._since_last or now - self._last_line < LINE_SECONDS:
            return
        parts = [f"{count} {REASONS[reason]}" for reason, count in self._since_last.items()]
        log.warning("connections ended: %s; the last from %s", ", ".join(parts), self._last_client)
        self._last_line = now
        self._since_last.clear()


def quiet_uvicorn() -> None:
    """Drop the lines that uvicorn logs for each invalid request."""
    logging.getLogger("uvicorn.error").addFilter(_is_not_counted)


def _is_not_counted(record: logging.LogRecord) -> bool:
    return not (isinstance(record.msg, str) and record.msg.startswith(_OF_UVICORN))
