"""What became of one attempt to send."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal

MOST_DETAIL = 500

Fate = Literal["delivered", "failed", "gone"]


@dataclass(frozen=True)
class Outcome:
    """``gone`` says that nobody will ever listen there again; ``wait`` is how long the receiver
    asked to be left alone, in seconds."""

    fate: Fate
    detail: str = ""
    status: int | None = None
    wait: float | None = None


def of_status(status: int, retry_after: str = "", said: str = "") -> Outcome:
    """What an HTTP status means for a message."""
    if 200 <= status < 300:
        return Outcome("delivered", status=status)
    if status == 410:
        return Outcome("gone", "410 Gone: the receiver wants no more", status)
    detail = f"HTTP status {status}"
    if 300 <= status < 400:
        detail += ": redirects are not followed; name the address that they lead to"
    elif said:
        detail += f": {said}"
    wait = seconds(retry_after) if status in (429, 503) else None
    return Outcome("failed", detail[:MOST_DETAIL], status, wait)


def seconds(retry_after: str) -> float | None:
    """What a Retry-After header asks for: a number of seconds, or a date."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
