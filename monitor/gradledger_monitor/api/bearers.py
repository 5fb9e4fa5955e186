"""Who bears which token: those of the database, that of the settings, and browsers' cookies."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from itsdangerous import BadSignature, URLSafeTimedSerializer

from gradledger_monitor.settings import Settings
from gradledger_monitor.store import tokens
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tokens import SCOPES, Token

SESSION_SECONDS = 7 * 24 * 3600
COOKIE = "gradledger_session"


@dataclass(frozen=True)
class Caller:
    """Who asks: by which token, and whether a browser keeps it."""

    token: Token
    browser: bool = False


class Bearers:
    """Knows tokens and sessions. Asks the database each time: what is revoked ends at once."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._store = store
        given = settings.admin_token
        self._admin = given.get_secret_value().encode() if given else None
        key = settings.session_key
        self._signer = URLSafeTimedSerializer(
            key.get_secret_value() if key else secrets.token_bytes(32),
            salt="gradledger session",
            signer_kwargs={"digest_method": sha256, "key_derivation": "hmac"},
        )

    def of_secret(self, secret: str) -> Token | None:
        """The token that this secret is."""
        if self._admin is not None and compare_digest(secret.encode(), self._admin):
            return self._admin_token()
        return tokens.of_secret(self._store, secret)

    def session(self, token: Token) -> str:
        """The value of a cookie for a browser that showed this token."""
        return str(self._signer.dumps(token.id))

    def of_session(self, cookie: str) -> Token | None:
        """The token behind a cookie that we signed, not too long ago."""
        try:
            token = self._signer.loads(cookie, max_age=SESSION_SECONDS)
        except BadSignature:
            return None
        admin = self._admin_token()
        return admin if admin and admin.id == token else tokens.of_id(self._store, token)

    def _admin_token(self) -> Token | None:
        if self._admin is None:
            return None
        # another token is another id: sessions of the old one end
        return Token(f"set-{sha256(self._admin).hexdigest()[:8]}", "of the settings", SCOPES, 0.0)
