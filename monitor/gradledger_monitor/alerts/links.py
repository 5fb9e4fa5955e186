"""Signed links in messages, with which the recipient can acknowledge or snooze one finding.

A link names the run and the rule and is signed with a key that is only in this database. A GET
changes nothing, because mail programs and chats open links; the page behind it has the buttons.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

LINK_PATH = "/alerts/answer/"  # public: the signature authorizes the request


class InvalidLink(ValueError):
    """The link was not signed by this service, or it has expired."""


@dataclass(frozen=True)
class LinkTarget:
    """The finding that a link is about."""

    run: str
    rule: str


class Links:
    """Creates and verifies links; each is valid for ``days``."""

    def __init__(self, base: str, key: bytes, days: float) -> None:
        self._base, self._seconds = base, round(days * 86_400)
        self._signer = URLSafeTimedSerializer(
            key,
            salt="gradledger alert",
            signer_kwargs={"digest_method": sha256, "key_derivation": "hmac"},
        )

    def create(self, run: str, rule: str) -> str:
        """The URL for a finding."""
        return f"{self._base}{LINK_PATH}{self._signer.dumps([run, rule])}"

    def verify(self, token: str) -> LinkTarget:
        """The target of a link. Raises ``InvalidLink``."""
        try:
            run, rule = self._signer.loads(token, max_age=self._seconds)
        except SignatureExpired as error:
            raise InvalidLink("This link has expired. Use the buttons on the run page") from error
        except (BadSignature, ValueError) as error:
            raise InvalidLink("This link is incomplete or was not created here") from error
        return LinkTarget(run, rule)
