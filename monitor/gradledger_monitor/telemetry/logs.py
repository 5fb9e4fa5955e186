"""Logs: one JSON object a line, or text on a terminal; each line names the request it is about.

Whatever a stranger sent is escaped in both, so that nobody writes lines of their own.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, Literal, TextIO

import msgspec

from gradledger_monitor.common.sanitize import printable

# never reset: the server handles each request in a context of its own, and logs after us
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


def configure(
    level: str, form: Literal["auto", "json", "text"], stream: TextIO | None = None
) -> None:
    """Send all logs of this process to stderr, from that level on."""
    stream = stream or sys.stderr
    text = stream.isatty() if form == "auto" else form == "text"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class JsonFormatter(logging.Formatter):
    """A JSON object; ``extra={"fields": {...}}`` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return msgspec.json.encode(_told(self, record)).decode()


class TextFormatter(logging.Formatter):
    """A line to read; a traceback follows on lines of its own, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and those of the traceback."""
        told = _told(self, record)
        trace = told.pop("exception", "")
        head = " ".join(str(told.pop(name)) for name in ("time", "level", "message"))
        rest = (f"{name}={value}" for name, value in told.items() if name != "logger")
        lines = [" ".join([head, *rest]), *trace.splitlines()]
        return "\n  ".join(map(printable, lines))


def _told(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    when = datetime.fromtimestamp(record.created, timezone.utc)
    told: dict[str, Any] = {
        "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    if (current := request_id.get()) is not None:
        told["request_id"] = current
    told |= getattr(record, "fields", {})
    if record.exc_info:
        told["exception"] = formatter.formatException(record.exc_info)
    return told
