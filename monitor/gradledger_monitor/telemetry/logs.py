"""Logs: one JSON object per line, or text on a terminal; each line has its request id.

Untrusted text is escaped in both formats, so that nobody can forge log lines.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, Literal, TextIO

import msgspec

from gradledger_monitor.common.sanitize import printable

# never reset: the server handles each request in its own context, and logs after the application
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


def configure(
    level: str, log_format: Literal["auto", "json", "text"], stream: TextIO | None = None
) -> None:
    """Send all logs of this process from ``level`` on to ``stream``, by default stderr."""
    stream = stream or sys.stderr
    text = stream.isatty() if log_format == "auto" else log_format == "text"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class JsonFormatter(logging.Formatter):
    """One JSON object per record; ``extra={"fields": {...}}`` adds members."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        return msgspec.json.encode(_members(self, record)).decode()


class TextFormatter(logging.Formatter):
    """One readable line per record, followed by the indented lines of its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, and the lines of its traceback."""
        members = _members(self, record)
        traceback = members.pop("exception", "")
        head = " ".join(str(members.pop(name)) for name in ("time", "level", "message"))
        rest = (f"{name}={value}" for name, value in members.items() if name != "logger")
        lines = [" ".join([head, *rest]), *traceback.splitlines()]
        return "\n  ".join(map(printable, lines))


def _members(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    time = datetime.fromtimestamp(record.created, timezone.utc)
    members: dict[str, Any] = {
        "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    if (current := request_id.get()) is not None:
        members["request_id"] = current
    members |= getattr(record, "fields", {})
    if record.exc_info:
        members["exception"] = formatter.formatException(record.exc_info)
    return members
