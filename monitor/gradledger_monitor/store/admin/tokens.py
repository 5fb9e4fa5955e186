"""API tokens: only their hashes are kept, each with what its bearer may do.

A token is 256 random bits. Nobody can guess one, so a slow, salted hash, which protects what people
choose for themselves, would protect nothing here and cost every request; SHA-256 does.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import Row, insert, select, update

from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import tokens

SCOPES = ("ingest", "read", "admin")
PREFIX = "gradledger_"  # by which scanners for leaked secrets know one
RANDOM_BYTES = 32


@dataclass(frozen=True)
class Token:
    """What is known of a token; never the token itself. Times are Unix seconds."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created: float
    revoked: float | None = None

    def allows(self, scope: str) -> bool:
        """Whether its bearer may do that; ``admin`` may do everything."""
        return scope in self.scopes or "admin" in self.scopes


def digest(secret: str) -> str:
    """What is kept of a token."""
    return sha256(secret.encode()).hexdigest()


def create(store: Store, name: str, scopes: Collection[str], now: float) -> tuple[Token, str]:
    """A new token, and the secret that is never to be had again."""
    secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    token = Token(secrets.token_hex(4), name, tuple(s for s in SCOPES if s in scopes), now)
    row = {"id": token.id, "name": name, "scopes": " ".join(token.scopes), "created": now}
    with store.writing() as connection:
        connection.execute(insert(tokens).values(**row, digest=digest(secret)))
    return token, secret


def of_secret(store: Store, secret: str) -> Token | None:
    """The token that this secret is, unless it was revoked."""
    return _valid(store, tokens.c.digest == digest(secret))


def of_id(store: Store, token: str) -> Token | None:
    """The token of that id, unless it was revoked."""
    return _valid(store, tokens.c.id == token)


def _valid(store: Store, which: Any) -> Token | None:
    query = select(tokens).where(which, tokens.c.revoked.is_(None))
    with store.reading() as connection:
        row = connection.execute(query).one_or_none()
    return None if row is None else _token(row)


def list_tokens(store: Store) -> list[Token]:
    """All tokens, revoked ones too, the oldest first."""
    with store.reading() as connection:
        return [_token(row) for row in connection.execute(select(tokens).order_by("created"))]


def revoke(store: Store, token: str, now: float) -> bool:
    """Make a token worthless, at once and for ever; False when there is no such valid token."""
    here = (tokens.c.id == token, tokens.c.revoked.is_(None))
    with store.writing() as connection:
        return connection.execute(update(tokens).where(*here).values(revoked=now)).rowcount == 1


def _token(row: Row[Any]) -> Token:
    return Token(row.id, row.name, tuple(row.scopes.split()), row.created, row.revoked)
