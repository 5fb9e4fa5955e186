"""Counts connections that ended early or were ended, and logs one line a minute about them.

Anyone can abort uploads or send bytes that are not HTTP, at line rate. A traceback or a log line
for each would fill the disk.
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
    "header_timeout": "headers that arrived too slowly",
    "body_timeout": "bodies that arrived too slowly",
    "send_timeout": "responses that were not read",
    "too_many": "connections beyond the limit",
}
# What uvicorn logs for each invalid request; `ConnectionLog` counts them instead.
_UVICORN_MESSAGES = (
    "Invalid HTTP request received.",
    "Unsupported upgrade request.",
    "No supported WebSocket library detected.",
)


class ConnectionLog:
    """Counts connections by reason. Use it only in the event loop."""

    def __init__(self, metric: Metric, now: Callable[[], float] = time.monotonic) -> None:
        self._counters = {reason: metric.labels(reason) for reason in REASONS}
        self._now = now
        self._since_last: Counter[str] = Counter()
        self._last_client = ""
        self._last_line = -LINE_SECONDS

    def count(self, reason: str, client: str) -> None:
        """Count one connection. The first is logged at once, later ones together after a minute."""
        self._counters[reason].inc()
        self._since_last[reason] += 1
        self._last_client = client
        self.report()

    def report(self) -> None:
        """Log the counts since the last line, at most once a minute."""
        now = self._now()
        if not self._since_last or now - self._last_line < LINE_SECONDS:
            return
        parts = [f"{count} {REASONS[reason]}" for reason, count in self._since_last.items()]
        log.warning("connections ended: %s; the last from %s", ", ".join(parts), self._last_client)
        self._last_line = now
        self._since_last.clear()


def quiet_uvicorn() -> None:
    """Drop the lines that uvicorn logs for each invalid request."""
    logging.getLogger("uvicorn.error").addFilter(_keeps)


def _keeps(record: logging.LogRecord) -> bool:
    return not (isinstance(record.msg, str) and record.msg.startswith(_UVICORN_MESSAGES))
