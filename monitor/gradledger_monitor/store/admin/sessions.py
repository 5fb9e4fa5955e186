"""Sessions of browsers: rows, so that the end of one applies in every process on the database.

The cookie is 256 random bits, of which only the hash is stored, as of tokens (see ``tokens.py``).
A session acts for its token and ends with it, at logout, or when it expires.
"""

from __future__ import annotations

import secrets

from sqlalchemy import delete, insert, select

from gradledger_monitor.store.admin.tokens import RANDOM_BYTES, digest
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import sessions


def create(store: Store, token: str, now: float, seconds: float) -> str:
    """Begin a session of the token with this id; return the secret for the cookie.

    Times are Unix seconds. Expired sessions are deleted.
    """
    secret = secrets.token_urlsafe(RANDOM_BYTES)
    row = {"digest": digest(secret), "token": token, "expires": now + seconds}
    with store.writing() as connection:
        connection.execute(delete(sessions).where(sessions.c.expires <= now))
        connection.execute(insert(sessions).values(**row))
    return secret


def token_of(store: Store, secret: str, now: float) -> str | None:
    """The id of the token that a session acts for; None if it ended or never existed."""
    query = select(sessions.c.token).where(
        sessions.c.digest == digest(secret), sessions.c.expires > now
    )
    with store.reading() as connection:
        return connection.scalar(query)


def end(store: Store, secret: str) -> None:
    """End a session, at once and in every process on the database."""
    with store.writing() as connection:
        connection.execute(delete(sessions).where(sessions.c.digest == digest(secret)))
