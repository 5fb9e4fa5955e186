"""Whether the service can do its work now: an honest answer, bounded in time, and not for load.

A probe writes to the disk, so its result holds for some seconds, and one probe runs at a time,
however often it is asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gradledger_monitor.common.problems import Problem
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.integrity import Probe

HOLDS_SECONDS = 5.0
WAIT_SECONDS = 3.0  # for a probe; then the database is too slow to work with


class Readiness:
    """Asked by ``/readyz`` on the event loop, and by ingest about the file alone."""

    def __init__(self, store: Store, works: Callable[[], bool]) -> None:
        self._probe = Probe(store)
        self._works = works
        self._running: asyncio.Task[str | None] | None = None
        self._result: str | None = None
        self._until = 0.0  # when the result is too old

    async def problem(self) -> str | None:
        """What keeps the service from working, in one sentence; None if nothing does."""
        if not self._works():
            return "The judge has ended."
        if time.monotonic() < self._until:
            return self._result
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        done, _ = await asyncio.wait({self._running}, timeout=WAIT_SECONDS)
        if not done:
            return f"The database has not answered within {WAIT_SECONDS:g} s."
        return self._result

    async def _run(self) -> str | None:
        try:
            self._result = await asyncio.to_thread(self._probe.problem)
            self._until = time.monotonic() + HOLDS_SECONDS
        finally:
            self._running = None
        return self._result

    def check_file(self) -> None:
        """Raises a problem if the database file is no longer the one that was opened."""
        file = self._probe.file
        problem = file.problem() if file is not None else None
        if problem is not None:
            detail = f"{problem} Nothing is stored until the service is started on a good one."
            raise Problem(503, detail, retry_after=30)
