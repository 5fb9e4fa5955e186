"""Ingest before evaluation, since Python runs one thread at a time.

The thread of a batch releases the GIL at every read and write, and waits for an evaluator that
computes before it gets it back: ingest would take several times as long as alone. So the evaluator
waits while batches arrive, for a bounded share of its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MIN_RUN_SECONDS = 0.004  # the evaluator runs this long before it checks for batches
WAIT_RATIO = 4  # it waits for at most this many times as long as it ran
MAX_WAIT_SECONDS = 0.2  # however long it ran
QUIET_SECONDS = 0.005  # without a batch before it goes on: a sender's next batch may be on its way


class IngestPriority:
    """Shared by the threads of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = 0
        self._idle = threading.Event()
        self._idle.set()
        self._since = 0.0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """For the time in which one batch is ingested."""
        with self._lock:
            self._batches += 1
            self._idle.clear()
        try:
            yield
        finally:
            with self._lock:
                self._batches -= 1
                if not self._batches:
                    self._idle.set()

    def yield_to_batches(self) -> None:
        """Wait while batches are ingested; the evaluator's thread calls it often."""
        run_seconds = time.perf_counter() - self._since
        if run_seconds < MIN_RUN_SECONDS:
            return
        if not self._idle.is_set():
            self._wait(time.perf_counter() + min(WAIT_RATIO * run_seconds, MAX_WAIT_SECONDS))
        self._since = time.perf_counter()

    def _wait(self, until: float) -> None:
        while (left := until - time.perf_counter()) > 0:
            if self._idle.wait(left):
                time.sleep(QUIET_SECONDS)
                if self._idle.is_set():
                    return
