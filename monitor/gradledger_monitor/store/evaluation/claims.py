"""Who judges a run: one process at a time, so that no work is done twice.

Claims save work; they are not what keeps a judgement right. That is the generation of a run, which
``commit`` compares: a claim may be lost without the process noticing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection, Engine, text

from gradledger_monitor.store.database import Store

# Others get their chance at runs that one process took while it was alone.
HELD_SECONDS = 60.0
SPACE = 0x676C << 48  # our corner of the database's 64-bit lock numbers

# A machine that lost its power holds no lock for longer than this makes it: 30 seconds.
_KEEPALIVE = "SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; "
_KEEPALIVE += "SET tcp_keepalives_count = 3"


class Claims:
    """For a database that only one process uses: it may judge everything."""

    def acquire(self, run: int) -> bool:
        """Whether this process may judge the run of this key now."""
        return True

    def refresh(self) -> None:
        """Notice claims that were lost, and let go of those held for long."""

    def release_all(self) -> None:
        """Let go of all."""

    def abandon(self) -> None:
        """Let go of all, whether or not the database answers."""


class SessionLocks(Claims):
    """Advisory locks of one Postgres session: they end with the process, however that ends."""

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
            self.abandon()  # whatever went wrong, nothing is known to be held any more
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
    """The claims that the database of a store calls for."""
    if store.engine.dialect.name == "postgresql":
        return SessionLocks(store.engine)
    return Claims()
