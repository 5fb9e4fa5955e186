"""Tokens of callers: those in the database, the one in the settings, and sessions of browsers."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from gradledger_monitor.common import clock
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.store.admin import sessions, tokens
from gradledger_monitor.store.admin.tokens import SCOPES, Token
from gradledger_monitor.store.database import Store

SESSION_SECONDS = 7 * 24 * 3600
COOKIE = "gradledger_session"


@dataclass(frozen=True)
class Caller:
    """The token of a request, and the session cookie if a browser sent it."""

    token: Token
    cookie: str | None = None

    @property
    def is_browser(self) -> bool:
        """Whether the caller is logged in with a browser."""
        return self.cookie is not None


caller: ContextVar[Caller | None] = ContextVar("caller", default=None)  # of the current request


def logged_in() -> bool:
    """Whether the caller is logged in with a browser."""
    current = caller.get()
    return current is not None and current.is_browser


def may_change() -> bool:
    """Whether the caller may change settings and findings."""
    current = caller.get()
    return current is None or current.token.allows("admin")


def token_name() -> str | None:
    """The name of the caller's token, if the service requires one."""
    current = caller.get()
    return current.token.name if current else None


class CredentialStore:
    """Looks up tokens and sessions, each time in the database: a revocation applies at once."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._store = store
        secret = settings.admin_token
        self._admin = secret.get_secret_value().encode() if secret else None

    def token_of_secret(self, secret: str) -> Token | None:
        """The token with this secret."""
        if self._admin is not None and compare_digest(secret.encode(), self._admin):
            return self._admin_token()
        return tokens.of_secret(self._store, secret)

    def log_in(self, token: Token) -> str:
        """Start a session and return the value of its cookie."""
        return sessions.create(self._store, token.id, clock.now(), SESSION_SECONDS)

    def log_out(self, cookie: str) -> None:
        """End the session of a cookie, in all service processes."""
        sessions.end(self._store, cookie)

    def token_of_session(self, cookie: str) -> Token | None:
        """The token of a session, if the session has not ended and the token is not revoked."""
        token = sessions.token_of(self._store, cookie, clock.now())
        return None if token is None else self._token_of_id(token)

    def is_valid(self, caller: Caller) -> bool:
        """Whether the caller's session and token are still valid."""
        if caller.cookie is not None:
            return self.token_of_session(caller.cookie) is not None
        return self._token_of_id(caller.token.id) is not None

    def _token_of_id(self, token: str) -> Token | None:
        admin = self._admin_token()
        return admin if admin and admin.id == token else tokens.of_id(self._store, token)

    def _admin_token(self) -> Token | None:
        if self._admin is None:
            return None
        # the id depends on the secret, so that a new secret ends the sessions of the old one
        id_ = f"set-{sha256(self._admin).hexdigest()[:8]}"
        return Token(id_, name="from the settings", scopes=tuple(SCOPES), created=0.0)
