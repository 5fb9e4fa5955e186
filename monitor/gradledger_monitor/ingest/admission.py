"""Room for batches that are not stored yet: when it is full, senders are asked to come again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from gradledger_monitor.common.problems import Problem

RETRY_AFTER_SECONDS = 2

Reserve = Callable[[int], None]


class LargeBatchSlot:
    """One large batch at a time, so that small ones need not wait for several of them."""

    def __init__(self) -> None:
        self._lock = Lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """For one batch. Raises a problem that says when to come again if another is there."""
        if not self._lock.acquire(blocking=False):
            again = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            raise Problem(429, "Another large batch is being stored; send it again.", again)
        try:
            yield
        finally:
            self._lock.release()


class MemoryBudget:
    """So many bytes in memory, of all batches together. Not for several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    @contextmanager
    def reserve(self) -> Iterator[Reserve]:
        """Room for one batch, taken as it comes in and given back at the end.

        A batch that is alone always finds room. Taking raises a problem that says when to come
        again.
        """
        own = 0

        def take(count: int) -> None:
            nonlocal own
            if own < self._taken and self._taken + count > self._most:
                again = {"Retry-After": str(RETRY_AFTER_SECONDS)}
                raise Problem(429, "Too many batches wait to be stored; send it again.", again)
            own += count
            self._taken += count

        try:
            yield take
        finally:
            self._taken -= own
