"""Whether a database can be written and is still the one that was opened.

SQLite does not detect that its file was replaced nor, while its pages are in memory, that the file
was overwritten. It would continue to acknowledge records that cannot be read again.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.failures import is_outage, public_reason

MAGIC = b"SQLite format 3\0"
PROBE_BYTES = 256 * 2**10
STRUCTURE_EVERY = 60.0  # seconds between two checks of the structure of an SQLite database
STRUCTURE_SECONDS = 0.5  # of one check, which covers only a part of a database of gigabytes
INSTRUCTIONS = 10_000  # of SQLite, between two readings of the clock

# changes nothing, and is committed like any other statement
_WRITE = text("UPDATE alembic_version SET version_num = version_num")


class DatabaseFile:
    """The file of an SQLite database, as it was when the service started."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _descriptor(str(path.resolve()))
        self._written = False

    def problem(self) -> str | None:
        """What happened to the file; None if it is unchanged. Takes microseconds."""
        try:
            current = os.stat(self.path)
        except OSError:
            return "The database file was removed."
        if not os.path.samestat(current, os.fstat(self._descriptor)):
            return "The database file was replaced by another one."
        begin = os.pread(self._descriptor, len(MAGIC), 0)
        if begin == MAGIC:
            self._written = True
        elif begin or self._written:
            return "The database file was overwritten."
        return None


@cache
def _descriptor(path: str) -> int:
    # Never closed: closing any descriptor of a file ends all locks that a process holds on it,
    # those of SQLite too (fcntl, "POSIX advisory locks").
    return os.open(path, os.O_RDONLY)


def database_file(store: Store) -> DatabaseFile | None:
    """The file of a store; None if it has none. Raises ``OSError``."""
    url = store.engine.url
    if url.get_backend_name() != "sqlite" or dialects.in_memory(url) or "uri" in url.query:
        return None
    return DatabaseFile(Path(str(url.database)))


class Probe:
    """Checks that a database can be written and read. For one thread at a time."""

    def __init__(self, store: Store) -> None:
        self.file = database_file(store)
        self._store = store
        self._structure_at = 0.0

    def problem(self) -> str | None:
        """Why the database cannot be used, in a sentence; None if it can."""
        try:
            problem = self.file.problem() if self.file is not None else None
            if problem is None:
                self._write()
                problem = self._structure_problem()
            return problem
        except OSError as error:
            return f"The disk takes no data: {error.strerror}."
        except DatabaseError as error:
            if not is_outage(error):
                raise
            return public_reason(error)

    def _write(self) -> None:
        if self.file is not None:
            _write_and_remove(Path(f"{self.file.path}.probe"))
        with self._store.writing() as connection:
            connection.execute(_WRITE)

    def _structure_problem(self) -> str | None:
        now = time.monotonic()
        if self.file is None or now < self._structure_at:
            return None
        result = _quick_check(self._store, now + STRUCTURE_SECONDS)
        if result not in (None, "ok"):
            return "The structure of the database is damaged. Restore a backup."
        self._structure_at = now + STRUCTURE_EVERY
        return None


def _write_and_remove(path: Path) -> None:
    """Write some bytes to the disk. A statement alone may fit into free pages of the file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        left = memoryview(bytes(PROBE_BYTES))
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()


def _quick_check(store: Store, end: float) -> str | None:
    """SQLite's first error in its file, or ``ok``; None if the time ran out."""
    with store.reading() as connection:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        driver.set_progress_handler(lambda: time.monotonic() > end, INSTRUCTIONS)
        try:
            return str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
        except DatabaseError as error:
            if "interrupted" in str(error.orig):
                return None
            raise
        finally:
            driver.set_progress_handler(None, 0)
