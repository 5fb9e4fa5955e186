"""Room for batches that are not stored yet: when it is full, senders are asked to come again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gradledger_monitor.problems import Problem

AGAIN_SECONDS = 2

Take = Callable[[int], None]


class Room:
    """So many bytes in memory, of all batches together. Not for several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    @contextmanager
    def for_one(self) -> Iterator[Take]:
        """Room for one batch, taken as it comes in and given back at the end.

        A batch that is alone always finds room. Taking raises a problem that says when to come
        again.
        """
        own = 0

        def take(count: int) -> None:
            nonlocal own
            if own < self._taken and self._taken + count > self._most:
                again = {"Retry-After": str(AGAIN_SECONDS)}
                raise Problem(429, "Too many batches wait to be stored; send it again.", again)
            own += count
            self._taken += count

        try:
            yield take
        finally:
            self._taken -= own
