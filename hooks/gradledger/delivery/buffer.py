"""Lines that wait for the service, oldest first: those on disk precede those in memory.

Lines stay in memory while the service keeps up, so a healthy run never uses the disk. ``spill``
moves them to the spool. Without a working disk they stay in memory, up to a limit.

Lines are numbered in order of arrival, so that an acknowledgement refers to the same lines after a
spill or a drop. Two background threads use this class; the training thread does not.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from threading import Lock
from typing import NamedTuple

from gradledger.delivery.encoding import encode
from gradledger.delivery.spool import Spool, SpoolLocation
from gradledger.delivery.spool_file import is_run
from gradledger.delivery.truncate import thin
from gradledger.records import RunRecord
from gradledger.stderr import OncePerTopic

MEMORY_BYTES = 64 * 2**20
DISK_RETRY_SECONDS = 10.0


class Batch(NamedTuple):
    """Lines for one request, and the number of the line that follows them."""

    lines: list[bytes]
    end: int


class RecordBuffer:
    """A bounded queue of lines; ``dropped`` counts the lines that exceeded the limits."""

    def __init__(
        self,
        run_record: Callable[[], RunRecord],
        location: SpoolLocation | None,
        messages: OncePerTopic,
    ) -> None:
        self._run_record, self._location, self._messages = run_record, location, messages
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
    def location(self) -> SpoolLocation | None:
        """Where the spool is; None without a spool."""
        return self._location

    def in_memory(self) -> int:
        """The number of lines that are not on disk."""
        return len(self._memory)

    def add(self, lines: list[bytes]) -> None:
        """Append lines."""
        with self._lock:
            self._memory.extend(lines)
            self._memory_bytes += sum(map(len, lines))
            if self._memory_bytes > MEMORY_BYTES:
                self._make_room()

    def next(self, max_lines: int, max_bytes: int) -> Batch | None:
        """The oldest lines, which stay in the buffer; None if there are none."""
        with self._lock:
            if self._closed:
                return None
            if self._spool:
                lines = self._spool.peek(max_lines, max_bytes)
                count = sum(not is_run(line) for line in lines)
            else:
                lines = _first(self._memory, max_lines, max_bytes)
                count = len(lines)
                lines = [encode(self._run_record()), *lines]
            return Batch(lines, self._front + count) if count else None

    def acknowledge(self, batch: Batch) -> None:
        """Remove the lines of a batch that the service has stored."""
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
        """Move the lines in memory to the spool, if there is one and the disk works."""
        with self._lock:
            if not self._memory or self._location is None or self._closed:
                return
            if time.monotonic() < self._disk_not_before:
                return
            try:
                self._write(self._location)
            except OSError as error:
                self._disk_not_before = time.monotonic() + DISK_RETRY_SECONDS
                problem = f"{self._location.directory} ({error.strerror or error})"
                self._messages.write(
                    "disk", f"cannot write unsent records to {problem}; they stay in memory"
                )

    def _write(self, location: SpoolLocation) -> None:
        run = self._run_record()
        if self._spool is None:
            self._spool = Spool(location, f"{run.run}.{run.rank}.{os.getpid()}")
        self._count_dropped(self._spool.append(encode(run), list(self._memory)))
        self._memory.clear()
        self._memory_bytes = 0

    def close(self) -> None:
        """Stop accepting and returning lines; files on disk stay for other processes."""
        with self._lock:
            self._closed = True
            if self._spool is not None:
                self._spool.close()

    def abandon(self) -> None:
        """Close the files in a forked child; they belong to the parent."""
        if self._spool is not None:
            self._spool.abandon()

    # ------------------------------------------------------------------ limits

    def _make_room(self) -> None:
        """Thin the older half; if that is not enough, drop the oldest lines."""
        half = len(self._memory) // 2
        lines = [thin(line) if i < half else line for i, line in enumerate(self._memory)]
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
            self._messages.write(
                "full", "the limit for unsent records is reached: the oldest are dropped"
            )


def _first(lines: deque[bytes], max_lines: int, max_bytes: int) -> list[bytes]:
    """The first lines within the limits, but at least one."""
    batch: list[bytes] = []
    size = 0
    for line in islice(lines, max_lines):
        size += len(line)
        if batch and size > max_bytes:
            break
        batch.append(line)
    return batch
