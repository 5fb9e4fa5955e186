"""Bounds on what one batch of records may cost: bytes, lines, memory, seconds.

A compressed body of kilobytes can hold megabytes of lines, and a line of megabytes can hold values
that take gigabytes once they are Python objects. Both are refused before anything is decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

# Bytes of Python objects, at the worst, for each of these in JSON: a struct with its dictionary of
# what is missing, a list, a number with its slot in a list.
OBJECT, LIST, VALUE, LINE = 224, 88, 40, 96
# beyond what the hooks send at once: such batches would keep all others waiting
LARGE_LINES, LARGE_MEMORY = 5_000, 96 * 2**20


class LimitExceeded(Exception):
    """A batch is beyond a bound; the message names the bound and the way out."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of one batch."""

    size: int  # bytes, as sent, and after decompression
    lines: int
    memory: int  # bytes, estimated
    seconds: float  # to decode it, and again to store it

    def body_too_large(self) -> LimitExceeded:
        """The refusal of a body that grows beyond the bound on bytes."""
        return _refusal(f"is larger than {self.size} bytes", "MAX_BODY_BYTES")

    def check(self, body: bytes) -> None:
        """Raises ``LimitExceeded`` where the lines or the memory of a decoded body are too much."""
        if body.count(b"\n") > self.lines:
            raise _refusal(f"has more than {self.lines} lines", "MAX_BATCH_LINES")
        if estimate_memory(body) > self.memory:
            what = f"would take more than {self.memory} bytes of memory once it is decoded"
            raise _refusal(what, "MAX_BATCH_MEMORY")

    def is_large(self, body: bytes) -> bool:
        """Whether a decoded body is one of those of which one is taken in at a time."""
        return body.count(b"\n") > LARGE_LINES or estimate_memory(body) > LARGE_MEMORY

    def timer(self) -> Callable[[], None]:
        """Starts now; what it gives raises ``LimitExceeded`` when called after the time is over."""
        end = time.monotonic() + self.seconds

        def check() -> None:
            if time.monotonic() > end:
                raise _refusal(f"takes longer than {self.seconds:g} s", "MAX_BATCH_SECONDS")

        return check


def estimate_memory(body: bytes) -> int:
    """How many bytes of memory the records in a body can take once decoded; an upper estimate."""
    counts = {b"{": OBJECT, b"[": LIST, b",": VALUE, b"\n": LINE}
    return len(body) + sum(size * body.count(sign) for sign, size in counts.items())


def _refusal(what: str, setting: str) -> LimitExceeded:
    way = "nothing of it was stored; send fewer records at a time"
    return LimitExceeded(f"The batch {what} (GRADLEDGER_{setting}): {way}.")
