"""What a person says about alerts: channels, routes, times. Secrets in it never show."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    TypeAdapter,
    field_serializer,
    field_validator,
)

from gradledger_monitor.model.findings import Severity

SECRET_PREFIX = "whsec_"
SMALLEST_SECRET, LARGEST_SECRET = 24, 64  # bytes, as Standard Webhooks asks
_HEADER = re.compile(r"[!-~]+")

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
Patterns = Annotated[list[Pattern], Field(min_length=1, max_length=64)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Target(_Strict):
    """Somewhere that a request is sent to; its address may hold a secret."""

    name: Name
    url: SecretStr

    @property
    def address(self) -> str:
        """The whole of it, for whoever sends."""
        return self.url.get_secret_value()

    @field_serializer("url")
    def _without_secrets(self, url: SecretStr) -> str:
        return shown(url.get_secret_value())


class _HttpTarget(_Target):
    bearer: SecretStr | None = Field(
        default=None, description="Sent as Authorization: Bearer, beside the signature."
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: SecretStr) -> SecretStr:
        check_address(url.get_secret_value())
        return url

    @field_validator("bearer")
    @classmethod
    def _is_one_word(cls, bearer: SecretStr | None) -> SecretStr | None:
        if bearer is not None and not _HEADER.fullmatch(bearer.get_secret_value()):
            raise ValueError("a bearer token has neither spaces nor other signs than ASCII")
        return bearer


class Webhook(_HttpTarget):
    """JSON to an address, signed after Standard Webhooks."""

    kind: Literal["webhook"] = "webhook"
    secrets: Annotated[list[SecretStr], Field(max_length=5)] = Field(
        default_factory=list,
        description="Each signs, so that a receiver may change over from one to the next; "
        "whsec_ and 24 to 64 bytes in base64.",
    )

    @field_validator("secrets")
    @classmethod
    def _are_keys(cls, secrets: list[SecretStr]) -> list[SecretStr]:
        for secret in secrets:
            check_secret(secret.get_secret_value())
        return secrets


class Apprise(_Target):
    """A person's messenger, by an Apprise URL: slack://, discord://, mailto://, pagerduty://."""

    kind: Literal["apprise"]
    image: bool = Field(default=True, description="Whether to send a small chart along.")

    @field_validator("url")
    @classmethod
    def _has_a_scheme(cls, url: SecretStr) -> SecretStr:
        if not re.match(r"[a-z0-9]+://.", url.get_secret_value(), re.IGNORECASE):
            raise ValueError("it must be an Apprise URL, like slack://... or mailto://...")
        return url


class Alertmanager(_HttpTarget):
    """Prometheus Alertmanager, by its v2 API: what it routes and silences goes on to hold."""

    kind: Literal["alertmanager"]


AnyChannel = Webhook | Apprise | Alertmanager
Channel = Annotated[AnyChannel, Field(discriminator="kind")]
_channel: TypeAdapter[AnyChannel] = TypeAdapter(Channel)


class Route(_Strict):
    """Which findings go to which channels; where several routes fit, all hold."""

    channels: Annotated[list[Name], Field(min_length=1, max_length=64)]
    severity: Severity = Field(default="warning", description="The least severity.")
    rules: Patterns = Field(default=["*"], description="Patterns of rules: scaler.*")
    projects: Patterns = Field(default=["*"], description="Patterns of projects.")
    runs: Patterns = Field(default=["*"], description="Patterns of run names.")


class Timing(_Strict):
    """When to speak, in seconds."""

    group_wait: float = 30.0
    repeat_after: float = 4 * 3600.0
    resolved: bool = True


def channel_of(config: dict[str, Any]) -> AnyChannel:
    """A channel from plain values. Raises pydantic's ``ValidationError``."""
    return _channel.validate_python({"kind": "webhook", **config})


def plain(channel: AnyChannel) -> dict[str, Any]:
    """All of a channel, its secrets too, for the database."""
    found = {name: getattr(channel, name) for name in type(channel).model_fields}
    return {name: _revealed(value) for name, value in found.items()}


def _revealed(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return [_revealed(one) for one in value] if isinstance(value, list) else value


def shown(url: str) -> str:
    """An address without whatever in it may be secret."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme}://…"
    place = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    return f"{parts.scheme}://{place}/…"


def check_address(url: str) -> None:
    """Raise ValueError unless it is an address that HTTP requests may go to."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it must be like https://host/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("names and passwords do not belong into the address: use bearer")
    if not _HEADER.fullmatch(url):
        raise ValueError("it has spaces or other signs than ASCII")
    _ = parts.port  # raises for one that is none


def check_secret(secret: str) -> None:
    """Raise ValueError unless it is a key of Standard Webhooks."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"a secret is {SECRET_PREFIX} and base64: {error}") from error
    if not SMALLEST_SECRET <= len(key) <= LARGEST_SECRET:
        sizes = f"{SMALLEST_SECRET} to {LARGEST_SECRET}"
        raise ValueError(f"a secret is {sizes} bytes in base64, not {len(key)} bytes")
