"""Links by which whoever got a message may acknowledge or snooze what it tells, and nothing else.

A link names the run and the rule, signed with a key that only this database knows. Opening it
changes nothing, for programs open links too; the page behind it has the buttons.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

LINK_PATH = "/alerts/answer/"  # public: the signature is what lets through


class InvalidLink(ValueError):
    """The link is none of ours, or is too old."""


@dataclass(frozen=True)
class LinkTarget:
    """What a link is about."""

    run: str
    rule: str


class Links:
    """Makes links, and reads them; ``days`` is how long each is good."""

    def __init__(self, base: str, key: bytes, days: float) -> None:
        self._base, self._seconds = base, round(days * 86_400)
        self._signer = URLSafeTimedSerializer(
            key,
            salt="gradledger alert",
            signer_kwargs={"digest_method": sha256, "key_derivation": "hmac"},
        )

    def to(self, run: str, rule: str) -> str:
        """The address for a finding."""
        return f"{self._base}{LINK_PATH}{self._signer.dumps([run, rule])}"

    def read(self, said: str) -> LinkTarget:
        """What a link is about. Raises ``InvalidLink``."""
        try:
            run, rule = self._signer.loads(said, max_age=self._seconds)
        except SignatureExpired as error:
            raise InvalidLink(
                "This link has run out; the page of the run has the same buttons"
            ) from error
        except (BadSignature, ValueError) as error:
            raise InvalidLink("This link is not one of ours, or a part of it is missing") from error
        return LinkTarget(run, rule)
