"""The result of an attack: one row of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock

HANG_SECONDS = 5.0
MEGABYTE = 2**20


@dataclass
class Outcome:
    """Counts of one attack. Safe to share between threads.

    ``lost`` and ``doubled`` count acknowledged steps. A refusal is a response that requires the
    client to retry or to change the request: any 4xx, and a 503 with ``Retry-After`` while the
    attack itself keeps the database unavailable (``outage``). Every other 5xx is an error.
    """

    name: str
    outage: bool = False
    tries: int = 0
    lost: int = 0
    doubled: int = 0
    errors: int = 0  # responses with a 5xx status
    refused: int = 0
    hangs: int = 0  # responses that took longer than HANG_SECONDS
    slowest: float = 0.0  # seconds
    memory: int = 0  # maximum memory growth of the service, in bytes
    memory_bound: int = 400 * MEGABYTE
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)  # other failures
    _lock: Lock = field(default_factory=Lock, repr=False)

    def answered(self, status: int, seconds: float, again: bool = False) -> None:
        """Count a response; ``again`` if it has a ``Retry-After`` header."""
        with self._lock:
            self.tries += 1
            self.statuses[status] += 1
            self.slowest = max(self.slowest, seconds)
            self.hangs += seconds > HANG_SECONDS
            if status >= 500 and not (status == 503 and again and self.outage):
                self.errors += 1
            elif status >= 400:
                self.refused += 1

    def tried(self, count: int = 1) -> None:
        """Count attempts without a separate response."""
        with self._lock:
            self.tries += count

    def fault(self, text: str) -> None:
        """Add a failure."""
        with self._lock:
            self.faults.append(text)

    @property
    def failed(self) -> bool:
        """Whether anything failed."""
        counts = (self.lost, self.doubled, self.errors, self.hangs, len(self.faults))
        return any(counts) or self.memory > self.memory_bound or not self.tries


HEAD = ("attack", "tries", "refused", "lost", "doubled", "5xx", "hangs", "slowest", "memory", "")


def table(outcomes: Iterable[Outcome]) -> str:
    """The table of all outcomes."""
    rows = [HEAD, *map(_row, outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _row(one: Outcome) -> tuple[str, ...]:
    counts = (one.tries, one.refused, one.lost, one.doubled, one.errors, one.hangs)
    measured = (f"{one.slowest:.2f} s", f"+{one.memory / MEGABYTE:.0f} MB")
    verdict = "FAILED" if one.failed else "ok"
    return (one.name, *(f"{count:,}" for count in counts), *measured, verdict)
