"""Limits on one batch of records: bytes, lines, memory, seconds.

A compressed body of kilobytes can contain megabytes of lines, and a line of megabytes can contain
values that take gigabytes as Python objects. Both are refused before anything is decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

# Upper bounds of the bytes of Python objects for each of these in JSON: a struct with its
# ``missing`` dictionary, a list, a number with its slot in a list, a line.
OBJECT, LIST, VALUE, LINE = 224, 88, 40, 96
# Larger than what the hooks send at once: such a batch would delay all others.
LARGE_LINES, LARGE_MEMORY = 5_000, 96 * 2**20


class LimitExceeded(Exception):
    """A batch exceeds a limit; the message names the limit and what to do."""


@dataclass(frozen=True)
class Bounds:
    """The limits of one batch."""

    size: int  # bytes, as sent, and after decompression
    lines: int
    memory: int  # bytes, estimated
    seconds: float  # to decode it, and again to store it

    def body_too_large(self) -> LimitExceeded:
        """The error for a body of more than ``size`` bytes."""
        return _error(f"is larger than {self.size} bytes", "MAX_BODY_BYTES")

    def check(self, body: bytes) -> None:
        """Check the lines and the memory of a decompressed body. Raises ``LimitExceeded``."""
        if body.count(b"\n") > self.lines:
            raise _error(f"has more than {self.lines} lines", "MAX_BATCH_LINES")
        if estimate_memory(body) > self.memory:
            what = f"would take more than {self.memory} bytes of memory once it is decoded"
            raise _error(what, "MAX_BATCH_MEMORY")

    def is_large(self, body: bytes) -> bool:
        """Whether a decompressed body is large, so that it must wait for ``LargeBatchSlot``."""
        return body.count(b"\n") > LARGE_LINES or estimate_memory(body) > LARGE_MEMORY

    def timer(self) -> Callable[[], None]:
        """Start a timer: a function that raises ``LimitExceeded`` after ``seconds``."""
        end = time.monotonic() + self.seconds

        def check() -> None:
            if time.monotonic() > end:
                raise _error(f"takes longer than {self.seconds:g} s", "MAX_BATCH_SECONDS")

        return check


def estimate_memory(body: bytes) -> int:
    """An upper bound of the bytes of memory that the records in a body take once decoded."""
    counts = {b"{": OBJECT, b"[": LIST, b",": VALUE, b"\n": LINE}
    return len(body) + sum(size * body.count(sign) for sign, size in counts.items())


def _error(what: str, setting: str) -> LimitExceeded:
    result = "none of it was stored; send fewer records at a time"
    return LimitExceeded(f"The batch {what} (GRADLEDGER_{setting}): {result}.")
