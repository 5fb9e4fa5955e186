"""Errors which mean that the database cannot be used, as messages for operators.

SQLite raises them as several classes, so they are recognised by their text.
"""

from __future__ import annotations

import logging

from sqlalchemy.exc import DatabaseError, OperationalError

_REASONS = {
    "file is not a database": "is not an SQLite database. Check the path, or restore a backup",
    "malformed": "is damaged. Restore a backup",
    "database is locked": "is locked by another process. End that process, or try again later",
    "readonly database": "cannot be written. Check the permissions of the file and its folder",
    "unable to open": "cannot be opened. Check the path and its permissions",
    "disk is full": "cannot be written because the disk is full. Free space on it",
    "disk I/O error": "cannot be read or written (disk I/O error). Check the disk",
}


def unusable(error: DatabaseError) -> str | None:
    """A line about a database that cannot be used; None for any other error."""
    reason = " ".join(str(error.orig).split())
    for text, explanation in _REASONS.items():
        if text in reason:
            address = getattr(error, "database", None) or "GRADLEDGER_DB"
            return f"the database {address} {explanation} ({reason})."
    if isinstance(error, OperationalError) and error.statement is None:
        return f"the database (GRADLEDGER_DB) cannot be reached: {reason}"
    if _is_lock_timeout(reason):
        return f"the database (GRADLEDGER_DB) is locked by another session: {reason}"
    return None


def public_reason(error: DatabaseError) -> str:
    """The reason of an outage in a sentence without addresses, because anybody may read it."""
    reason = str(error.orig)
    for text, explanation in _REASONS.items():
        if text in reason:
            return f"The database {explanation}."
    return "The database is locked." if _is_lock_timeout(reason) else "The database is away."


def is_outage(error: DatabaseError) -> bool:
    """Whether an error means that the database cannot be used, and is not a bug."""
    return isinstance(error, OperationalError) or unusable(error) is not None


def log_failure(log: logging.Logger, error: Exception, what: str) -> None:
    """Log that ``what`` failed: one line for an outage of the database, else a traceback."""
    if isinstance(error, DatabaseError) and is_outage(error):
        log.error("%s; the database cannot be used: %s", what, error.orig)
    else:
        log.error(what, exc_info=error)


def _is_lock_timeout(reason: str) -> bool:
    return "due to lock timeout" in reason
