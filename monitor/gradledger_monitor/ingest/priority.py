"""Who goes first where Python runs one thread at a time: batches that come in, then judging.

A batch's thread gives Python up at every read and write, and must wait for a judge that computes
before it gets it back: taking records in would be several times as slow as alone. So the judge
steps aside while batches come in, for a bounded share of its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE = 0.004  # seconds that the judge goes on before it looks
SHARE = 4  # it waits for at most so many times as long as it went on
MOST = 0.2  # seconds, however long that was
QUIET = 0.005  # without a batch, until it takes its turn: a sender's next one is on its way


class IngestPriority:
    """Shared by all that work in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = 0
        self._idle = threading.Event()
        self._idle.set()
        self._since = 0.0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """While one is taken in."""
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
        """Let batches pass; to be called often by the one thread that judges."""
        went_on = time.perf_counter() - self._since
        if went_on < AT_ONCE:
            return
        if not self._idle.is_set():
            self._wait(time.perf_counter() + min(SHARE * went_on, MOST))
        self._since = time.perf_counter()

    def _wait(self, until: float) -> None:
        while (left := until - time.perf_counter()) > 0:
            if self._idle.wait(left):
                time.sleep(QUIET)
                if self._idle.is_set():
                    return
