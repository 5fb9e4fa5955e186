"""Who bears which token: those of the database, that of the settings, and browsers' sessions."""

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
    """Who asks: by which token, and through which session's cookie, if a browser does."""

    token: Token
    cookie: str | None = None

    @property
    def browser(self) -> bool:
        """Whether a browser asks, which may log out."""
        return self.cookie is not None


caller: ContextVar[Caller | None] = ContextVar("caller", default=None)  # of the request at hand


class CredentialStore:
    """Knows tokens and sessions. Asks the database each time: what is revoked ends at once."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._store = store
        given = settings.admin_token
        self._admin = given.get_secret_value().encode() if given else None

    def of_secret(self, secret: str) -> Token | None:
        """The token that this secret is."""
        if self._admin is not None and compare_digest(secret.encode(), self._admin):
            return self._admin_token()
        return tokens.of_secret(self._store, secret)

    def log_in(self, token: Token) -> str:
        """Begin a session; return the value of its cookie."""
        return sessions.create(self._store, token.id, clock.now(), SESSION_SECONDS)

    def log_out(self, cookie: str) -> None:
        """End the session of a cookie in every process on the database."""
        sessions.end(self._store, cookie)

    def of_session(self, cookie: str) -> Token | None:
        """The token that a session acts for, if neither has ended."""
        token = sessions.token_of(self._store, cookie, clock.now())
        return None if token is None else self._of_id(token)

    def is_valid(self, caller: Caller) -> bool:
        """Whether the caller's session and token have not ended since."""
        if caller.cookie is not None:
            return self.of_session(caller.cookie) is not None
        return self._of_id(caller.token.id) is not None

    def _of_id(self, token: str) -> Token | None:
        admin = self._admin_token()
        return admin if admin and admin.id == token else tokens.of_id(self._store, token)

    def _admin_token(self) -> Token | None:
        if self._admin is None:
            return None
        # another token is another id: sessions of the old one end
        return Token(f"set-{sha256(self._admin).hexdigest()[:8]}", "of the settings", SCOPES, 0.0)
