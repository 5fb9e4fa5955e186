"""Whether the service works now, answered within a bounded time.

A probe writes to the disk, so its result is reused for some seconds, and only one probe runs at a
time, however often the service is probed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gradledger_monitor.common.problems import Problem
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.integrity import Probe

REUSE_SECONDS = 5.0  # for which the result of a probe is reused
TIMEOUT_SECONDS = 3.0  # of a probe; a slower database is unusable


class Readiness:
    """Checked by ``/readyz`` on the event loop; ingest checks the database file only."""

    def __init__(self, store: Store, evaluator_runs: Callable[[], bool]) -> None:
        self._probe = Probe(store)
        self._evaluator_runs = evaluator_runs
        self._running: asyncio.Task[str | None] | None = None
        self._result: str | None = None
        self._until = 0.0  # time.monotonic() at which the result expires

    async def problem(self) -> str | None:
        """Why the service is not ready, in one sentence; None if it is."""
        if not self._evaluator_runs():
            return "The evaluator has stopped."
        if time.monotonic() < self._until:
            return self._result
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        done, _ = await asyncio.wait({self._running}, timeout=TIMEOUT_SECONDS)
        if not done:
            return f"The database did not answer within {TIMEOUT_SECONDS:g} s."
        return self._result

    async def _run(self) -> str | None:
        try:
            self._result = await asyncio.to_thread(self._probe.problem)
            self._until = time.monotonic() + REUSE_SECONDS
        finally:
            self._running = None
        return self._result

    def check_file(self) -> None:
        """Raise a problem if the database file is no longer the one that was opened."""
        file = self._probe.file
        problem = file.problem() if file is not None else None
        if problem is not None:
            detail = (
                f"{problem} Nothing is stored until the service is restarted with a valid file."
            )
            raise Problem(503, detail, retry_after=30)
