"""API tokens: only their hashes are stored, each with its scopes.

A token is 256 random bits, which cannot be guessed. A slow, salted hash, as for passwords, would
add no protection and cost time in every request, so the hash is SHA-256.
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

# Each scope, and what it permits.
SCOPES = {"ingest": "send records", "read": "view runs", "admin": "everything"}
PREFIX = "gradledger_"  # lets scanners for leaked secrets recognise a token
RANDOM_BYTES = 32


@dataclass(frozen=True)
class Token:
    """The properties of a token, without its secret. Times are Unix seconds."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created: float
    revoked: float | None = None

    def allows(self, scope: str) -> bool:
        """Whether the token has a scope; ``admin`` includes all."""
        return scope in self.scopes or "admin" in self.scopes


def digest(secret: str) -> str:
    """The hash of a secret, as it is stored."""
    return sha256(secret.encode()).hexdigest()


def create(store: Store, name: str, scopes: Collection[str], now: float) -> tuple[Token, str]:
    """Create a token; return it and its secret, which cannot be read again."""
    secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    ordered = tuple(scope for scope in SCOPES if scope in scopes)
    token = Token(id=secrets.token_hex(4), name=name, scopes=ordered, created=now)
    row = {"id": token.id, "name": name, "scopes": " ".join(token.scopes), "created": now}
    with store.writing() as connection:
        connection.execute(insert(tokens).values(**row, digest=digest(secret)))
    return token, secret


def of_secret(store: Store, secret: str) -> Token | None:
    """The token with this secret; None if there is none or it was revoked."""
    return _valid(store, tokens.c.digest == digest(secret))


def of_id(store: Store, token: str) -> Token | None:
    """The token with this id; None if there is none or it was revoked."""
    return _valid(store, tokens.c.id == token)


def _valid(store: Store, which: Any) -> Token | None:
    query = select(tokens).where(which, tokens.c.revoked.is_(None))
    with store.reading() as connection:
        row = connection.execute(query).one_or_none()
    return None if row is None else _token(row)


def list_tokens(store: Store) -> list[Token]:
    """All tokens, also revoked ones, the oldest first."""
    with store.reading() as connection:
        return [_token(row) for row in connection.execute(select(tokens).order_by("created"))]


def revoke(store: Store, token: str, now: float) -> bool:
    """Revoke a token at once and for ever; return False if there is no such valid token."""
    valid = (tokens.c.id == token, tokens.c.revoked.is_(None))
    with store.writing() as connection:
        return connection.execute(update(tokens).where(*valid).values(revoked=now)).rowcount == 1


def _token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        scopes=tuple(row.scopes.split()),
        created=row.created,
        revoked=row.revoked,
    )
