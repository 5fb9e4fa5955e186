"""The database: opening, reading, writing by one writer at a time, and migration."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock

from alembic import command
from alembic.config import Config
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, RootTransaction, create_engine, make_url
from sqlalchemy.exc import OperationalError

from gradledger_monitor.common.paths import migrations_folder
from gradledger_monitor.store import dialects, private_files

WAIT_SECONDS = 5.0
LOCKED_SECONDS = 1.0  # in which writers fail at once, after one waited in vain


# Revisions of versions that were never released: their migrations are squashed into one.
UNRELEASED = frozenset(f"{number:04d}" for number in range(1, 15))


class UnknownRevision(Exception):
    """The tables are at a revision that this version cannot upgrade; the message has the fix."""


class DatabaseTooNew(UnknownRevision):
    """A newer version made the tables."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"is too new: its tables, at {revision}, were made by a newer gradledger. "
            "Upgrade gradledger, or restore the backup that was made before"
        )


class DatabaseTooOld(UnknownRevision):
    """An unreleased version made the tables."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"is too old: its tables, at {revision}, were made by an unreleased version of "
            "gradledger. Export its runs with that version (gradledger export), or start a new "
            "database"
        )


class Store:
    """A database of runs. Safe to share between threads.

    A statement waits up to ``wait`` seconds for a lock that another process holds, and then raises
    ``OperationalError``.

    Raises ``ValueError`` or an ``ArgumentError`` of SQLAlchemy for a URL without a supported
    database, and ``ModuleNotFoundError`` if its driver is not installed.
    """

    def __init__(self, url: str, wait: float = WAIT_SECONDS) -> None:
        parsed = make_url(url)
        if parsed.get_backend_name() not in dialects.SUPPORTED:
            raise ValueError(f"the database must be one of {', '.join(dialects.SUPPORTED)}")
        if parsed.get_backend_name() == "sqlite" and not dialects.in_memory(parsed):
            private_files.create_database_file(parsed)
        self.engine = _engine(parsed)
        dialects.prepare(self.engine, wait)
        self._locked_until = 0.0
        self._one_writer = self.engine.dialect.name == "sqlite"
        self._writing = RLock()
        self._reading: AbstractContextManager[object] = (
            self._writing if dialects.in_memory(parsed) else nullcontext()
        )

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads, and sees a consistent snapshot of the database."""
        with self._reading, self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction, which is durable when the block ends without an exception."""
        # Threads queue here, in order of arrival, rather than poll for SQLite's lock.
        queue = self._writing if self._one_writer else nullcontext()
        with queue, self.engine.connect() as connection:
            connection = connection.execution_options(**{dialects.WRITES: True})
            with self._begin(connection):
                yield connection

    def _begin(self, connection: Connection) -> RootTransaction:
        """Begin to write. If a writer just waited in vain for another process, fail at once.

        Otherwise each thread in the queue would wait for the full time, one after the other.
        """
        if time.monotonic() < self._locked_until:
            raise dialects.locked()
        try:
            return connection.begin()
        except OperationalError as error:
            if self._one_writer and dialects.is_locked(error):
                self._locked_until = time.monotonic() + LOCKED_SECONDS
            raise

    def migrate(self) -> None:
        """Bring the tables up to this version of the service. Raises ``UnknownRevision``."""
        # never the URL as an option: a % in a password would be interpolated
        config = Config()
        folder = str(migrations_folder()).replace("%", "%%")
        config.set_main_option("script_location", folder)
        with self.writing() as connection:
            dialects.wait_for_migrations(connection)
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as error:
                if not isinstance(error.__cause__, ResolutionError):
                    raise
                revision = error.__cause__.argument
                reason = DatabaseTooOld if revision in UNRELEASED else DatabaseTooNew
                raise reason(revision) from error

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _engine(url: URL) -> Engine:
    try:
        return create_engine(url, **dialects.engine_options(url))
    except ModuleNotFoundError as error:
        fix = "use postgresql+psycopg://... and pip install 'gradledger[monitor,postgres]'"
        raise ModuleNotFoundError(f"{error}; for Postgres, {fix}", name=error.name) from error
