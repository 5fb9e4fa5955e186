"""The configuration of alerts: channels, routes, timing. Secrets in it are never displayed."""

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
SMALLEST_SECRET, LARGEST_SECRET = 24, 64  # bytes, as Standard Webhooks requires
_HEADER = re.compile(r"[!-~]+")

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
Patterns = Annotated[list[Pattern], Field(min_length=1, max_length=64)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Target(_Strict):
    """A target of requests; its URL may contain a secret."""

    name: Name
    url: SecretStr

    @property
    def address(self) -> str:
        """The URL with its secrets, to send to."""
        return self.url.get_secret_value()

    @field_serializer("url")
    def _without_secrets(self, url: SecretStr) -> str:
        return redacted_url(url.get_secret_value())


class _HttpTarget(_Target):
    bearer: SecretStr | None = Field(
        default=None, description="Sent as Authorization: Bearer, in addition to the signature."
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
            raise ValueError("a bearer token has only printable ASCII characters and no spaces")
        return bearer


class Webhook(_HttpTarget):
    """JSON to a URL, signed as in Standard Webhooks."""

    kind: Literal["webhook"] = "webhook"
    secrets: Annotated[list[SecretStr], Field(max_length=5)] = Field(
        default_factory=list,
        description="Each signs every message, so that a receiver can change its secret; "
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
    image: bool = Field(default=True, description="Whether to attach a small chart.")

    @field_validator("url")
    @classmethod
    def _has_a_scheme(cls, url: SecretStr) -> SecretStr:
        if not re.match(r"[a-z0-9]+://.", url.get_secret_value(), re.IGNORECASE):
            raise ValueError("it must be an Apprise URL, such as slack://... or mailto://...")
        return url


class Alertmanager(_HttpTarget):
    """Prometheus Alertmanager, by its v2 API: its routes and silences apply."""

    kind: Literal["alertmanager"]


AnyChannel = Webhook | Apprise | Alertmanager
Channel = Annotated[AnyChannel, Field(discriminator="kind")]
_channel: TypeAdapter[AnyChannel] = TypeAdapter(Channel)


class Route(_Strict):
    """Which findings go to which channels. All matching routes apply."""

    channels: Annotated[list[Name], Field(min_length=1, max_length=64)]
    severity: Severity = Field(default="warning", description="The minimum severity.")
    rules: Patterns = Field(default=["*"], description="Patterns of rule names, such as scaler.*")
    projects: Patterns = Field(default=["*"], description="Patterns of project names.")
    runs: Patterns = Field(default=["*"], description="Patterns of run names.")


class Timing(_Strict):
    """When to send, in seconds, and whether to send resolutions."""

    group_wait: float = 30.0
    repeat_after: float = 4 * 3600.0
    resolved: bool = True


def parse_channel(config: dict[str, Any]) -> AnyChannel:
    """A channel from JSON values. Raises pydantic's ``ValidationError``."""
    return _channel.validate_python({"kind": "webhook", **config})


def dump_with_secrets(channel: AnyChannel) -> dict[str, Any]:
    """All fields of a channel, with its secrets, for the database."""
    return {name: _revealed(getattr(channel, name)) for name in type(channel).model_fields}


def _revealed(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return [_revealed(entry) for entry in value] if isinstance(value, list) else value


def redacted_url(url: str) -> str:
    """A URL without the parts that may be secret."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme}://…"
    host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    return f"{parts.scheme}://{host}/…"


def check_address(url: str) -> None:
    """Raise ValueError unless HTTP requests can be sent to the URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it must have the form https://host/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it must not contain a user name or a password; use bearer")
    if not _HEADER.fullmatch(url):
        raise ValueError("it contains a space or a character outside ASCII")
    _ = parts.port  # raises for an invalid port


def check_secret(secret: str) -> None:
    """Raise ValueError unless it is a valid secret of Standard Webhooks."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"a secret is {SECRET_PREFIX} followed by base64: {error}") from error
    if not SMALLEST_SECRET <= len(key) <= LARGEST_SECRET:
        sizes = f"{SMALLEST_SECRET} to {LARGEST_SECRET}"
        raise ValueError(f"a secret is {sizes} bytes in base64, not {len(key)} bytes")
