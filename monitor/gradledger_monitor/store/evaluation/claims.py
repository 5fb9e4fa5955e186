"""Claims of runs: one process evaluates a run at a time, so that no work is done twice.

Claims save work; they do not keep evaluations right, because a process may lose one without
noticing. That is what the generation of a run is for: see ``results.py``. A process acquires a
claim before it evaluates a run, refreshes its claims between passes, and releases all of them when
nothing is pending. On Postgres a claim is an advisory lock of a session, which ends with the
process. SQLite has one service process, which needs no claims.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection, Engine, text

from gradledger_monitor.store.database import Store

# After which a claim is released, so that processes that started later get their share of the runs.
HELD_SECONDS = 60.0
SPACE = 0x676C << 48  # of the 64-bit numbers of advisory locks; the low bits are the run

# The locks of a machine that loses power are released after 30 seconds: 15 + 3 * 5.
_KEEPALIVE = "SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; "
_KEEPALIVE += "SET tcp_keepalives_count = 3"


class Claims:
    """Claims on a database that only one process uses: it may evaluate every run."""

    def acquire(self, run: int) -> bool:
        """Return whether this process may evaluate the run with this key now."""
        return True

    def refresh(self) -> None:
        """Notice lost claims, and release those that were held for ``HELD_SECONDS``."""

    def release_all(self) -> None:
        """Release all claims."""

    def abandon(self) -> None:
        """Release all claims even if the database does not answer, by closing the session."""


class SessionLocks(Claims):
    """Advisory locks of one Postgres session, which ends with the process even if it is killed."""

    def __init__(self, engine: Engine, now: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._now = engine, now
        self._session: Connection | None = None
        self._held: dict[int, float] = {}

    def acquire(self, run: int) -> bool:
        if run not in self._held and self._scalar("SELECT pg_try_advisory_lock(:lock)", run):
            self._held[run] = self._now()
        return run in self._held

    def refresh(self) -> None:
        if self._held:
            self._scalar("SELECT true")
        for run, since in list(self._held.items()):
            if self._now() - since >= HELD_SECONDS:
                self._release(run)

    def release_all(self) -> None:
        if self._session is not None:
            self._scalar("SELECT true FROM pg_advisory_unlock_all()")
            self._session.close()  # back to the pool
            self._session = None
        self._held.clear()

    def _release(self, run: int) -> None:
        self._scalar("SELECT pg_advisory_unlock(:lock)", run)
        del self._held[run]

    def _scalar(self, statement: str, run: int | None = None) -> bool:
        values = {} if run is None else {"lock": SPACE + run}
        try:
            return bool(self._connected().scalar(text(statement), values))
        except Exception:
            self.abandon()  # the session may be broken, and its locks lost
            raise

    def abandon(self) -> None:
        self._held.clear()
        if self._session is not None:
            self._session.invalidate()  # ends the session, and the locks with it
            self._session.close()
            self._session = None

    def _connected(self) -> Connection:
        if self._session is None:
            session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            session.exec_driver_sql(_KEEPALIVE)
            self._session = session
        return self._session


def claims_for(store: Store) -> Claims:
    """The claims that the database of a store needs."""
    if store.engine.dialect.name == "postgresql":
        return SessionLocks(store.engine)
    return Claims()
