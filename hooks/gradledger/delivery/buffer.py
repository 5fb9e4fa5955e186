"""Everything that waits for the service, oldest first: on the disk, and behind it in memory.

Lines stay in memory for as long as the service keeps up, and a healthy run never touches a disk.
``spill`` moves them to the spool. Where no disk takes them they stay, within a bound.

Lines are numbered by their place in the order of arrival, so that an acknowledgement still means
the same lines after a spill or a drop. Two background threads share this; training never does.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from threading import Lock
from typing import NamedTuple

from gradledger.delivery.spool import Place, Spool
from gradledger.delivery.spool_file import is_run
from gradledger.delivery.stderr_messages import Notices
from gradledger.delivery.truncate import thin
from gradledger.records import RunRecord, encode

MEMORY_BYTES = 64 * 2**20
DISK_RETRY_SECONDS = 10.0


class Batch(NamedTuple):
    """Lines for one request, and the number of the line that follows them."""

    body: list[bytes]
    end: int


class Backlog:
    """A queue of lines; what its bounds cost is counted in ``dropped``."""

    def __init__(
        self, speaker: Callable[[], RunRecord], place: Place | None, notices: Notices
    ) -> None:
        self._speaker, self._place, self._notices = speaker, place, notices
        self._lock = Lock()
        self._spool: Spool | None = None
        self._memory: deque[bytes] = deque()
        self._memory_bytes = 0
        self._front = 0  # number of the oldest line
        self._disk_not_before = 0.0
        self._closed = False
        self.dropped = 0

    def __len__(self) -> int:
        with self._lock:
            return (len(self._spool) if self._spool else 0) + len(self._memory)

    @property
    def place(self) -> Place | None:
        """Where the spool is; None where there is none."""
        return self._place

    def in_memory(self) -> int:
        """How many lines no disk holds."""
        return len(self._memory)

    def add(self, lines: list[bytes]) -> None:
        """Put lines at the end."""
        with self._lock:
            self._memory.extend(lines)
            self._memory_bytes += sum(map(len, lines))
            if self._memory_bytes > MEMORY_BYTES:
                self._make_room()

    def next(self, most_lines: int, most_bytes: int) -> Batch | None:
        """The oldest lines, without taking them away."""
        with self._lock:
            if self._closed:
                return None
            if self._spool:
                body = self._spool.peek(most_lines, most_bytes)
                count = sum(not is_run(line) for line in body)
            else:
                body = _first(self._memory, most_lines, most_bytes)
                count = len(body)
                body = [encode(self._speaker()), *body]
            return Batch(body, self._front + count) if count else None

    def acknowledge(self, batch: Batch) -> None:
        """The service has these lines for good."""
        with self._lock:
            count = batch.end - self._front
            if self._closed or count <= 0:
                return
            self._front = batch.end
            on_disk = min(count, len(self._spool)) if self._spool else 0
            if self._spool and on_disk:
                self._spool.advance(on_disk)
            for _ in range(count - on_disk):
                self._memory_bytes -= len(self._memory.popleft())

    # ------------------------------------------------------------------ to the disk

    def spill(self) -> None:
        """Bring what is in memory to the disk, if there is one that takes it."""
        with self._lock:
            if not self._memory or self._place is None or self._closed:
                return
            if time.monotonic() < self._disk_not_before:
                return
            try:
                self._write(self._place)
            except OSError as error:
                self._disk_not_before = time.monotonic() + DISK_RETRY_SECONDS
                where = f"{self._place.own} takes no records ({error.strerror or error})"
                self._notices.once("disk", f"{where}; what cannot be sent stays in memory")

    def _write(self, place: Place) -> None:
        speaker = self._speaker()
        if self._spool is None:
            self._spool = Spool(place, f"{speaker.run}.{speaker.rank}.{os.getpid()}")
        self._count_dropped(self._spool.append(encode(speaker), list(self._memory)))
        self._memory.clear()
        self._memory_bytes = 0

    def close(self) -> None:
        """Nothing more is taken or given; what is on the disk stays there for others."""
        with self._lock:
            self._closed = True
            if self._spool is not None:
                self._spool.close()

    def abandon(self) -> None:
        """In a forked child: the files are the parent's."""
        if self._spool is not None:
            self._spool.abandon()

    # ------------------------------------------------------------------ what does not fit

    def _make_room(self) -> None:
        """Thin the older half; if that is not enough, drop the oldest."""
        half = len(self._memory) // 2
        lines = [thin(line) if at < half else line for at, line in enumerate(self._memory)]
        self._memory, self._memory_bytes = deque(lines), sum(map(len, lines))
        dropped = 0
        while self._memory_bytes > MEMORY_BYTES * 3 // 4:
            self._memory_bytes -= len(self._memory.popleft())
            dropped += 1
        self._count_dropped(dropped)

    def _count_dropped(self, count: int) -> None:
        if count:
            self._front += count
            self.dropped += count
            self._notices.once(
                "room", "there is no room for more unsent records: the oldest are dropped"
            )


def _first(lines: deque[bytes], most_lines: int, most_bytes: int) -> list[bytes]:
    """So many lines from the front as fit, but one at least."""
    batch: list[bytes] = []
    size = 0
    for line in islice(lines, most_lines):
        size += len(line)
        if batch and size > most_bytes:
            break
        batch.append(line)
    return batch
