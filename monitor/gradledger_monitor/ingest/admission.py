"""Memory for batches that are not stored yet: if it is used up, senders must retry later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from gradledger_monitor.common.problems import Problem

RETRY_AFTER_SECONDS = 2

Reserve = Callable[[int], None]


class LargeBatchSlot:
    """One large batch at a time, so that small ones do not wait for several of them."""

    def __init__(self) -> None:
        self._lock = Lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the slot for one batch. Raises a retryable problem if it is taken."""
        if not self._lock.acquire(blocking=False):
            detail = "Another large batch is being stored; send it again."
            raise Problem(429, detail, retry_after=RETRY_AFTER_SECONDS)
        try:
            yield
        finally:
            self._lock.release()


class MemoryBudget:
    """Bytes in memory of all batches together. Not thread-safe: used on the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0

    @contextmanager
    def reserve(self) -> Iterator[Reserve]:
        """A function that reserves bytes for one batch as they arrive; released at the end.

        The only batch in memory is always admitted. Otherwise the function raises a retryable
        problem if the budget is used up.
        """
        own = 0

        def reserve(count: int) -> None:
            nonlocal own
            if own < self._used and self._used + count > self._limit:
                detail = "Too many batches wait to be stored; send it again."
                raise Problem(429, detail, retry_after=RETRY_AFTER_SECONDS)
            own += count
            self._used += count

        try:
            yield reserve
        finally:
            self._used -= own
