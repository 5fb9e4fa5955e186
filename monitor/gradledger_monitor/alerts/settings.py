"""What a person may set about alerts, beside what is made in the service itself."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode
from typing_extensions import Self

from gradledger_monitor.alerts.backoff import DELAYS
from gradledger_monitor.alerts.configuration import Channel, Route, Timing
from gradledger_monitor.alerts.egress_policy import EgressPolicy

Words = Annotated[list[str], NoDecode]  # in the environment: a,b,c
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
DAY = 86_400.0


class AlertSettings(BaseSettings):
    """Channels, routes, times, and where messages may go."""

    public_url: str | None = Field(
        default=None,
        description="Where people reach the service, for links in messages: https://host/path. "
        "By default, its own address.",
    )
    alert_channels: list[Channel] = Field(
        default_factory=list, description="Where alerts go, as JSON or in the file."
    )
    alert_routes: list[Route] = Field(
        default_factory=list,
        description="Which findings go to which channels; without any, all channels hear of "
        "warnings and errors.",
    )
    alert_group_wait: Seconds = Field(
        default=30.0,
        description="Seconds that findings wait for others of their run; errors do not wait.",
    )
    alert_repeat_after: Annotated[float, Field(ge=60, allow_inf_nan=False)] = Field(
        default=4 * 3600.0, description="Seconds after which a finding that lasts is told again."
    )
    alert_resolved: bool = Field(
        default=True, description="Whether to tell that a finding was resolved."
    )
    alert_timeout: Annotated[float, Field(gt=0, le=120)] = Field(
        default=15.0, description="Seconds for one attempt to send."
    )
    alert_retries: Annotated[list[Seconds], Field(max_length=100)] = Field(
        default_factory=lambda: list(DELAYS),
        description="Seconds before each further attempt, give or take a fifth.",
    )
    alert_networks: Words = Field(
        default_factory=list,
        description="Networks that are not public and may be sent to all the same: 10.0.0.0/8.",
    )
    alert_link_days: Annotated[float, Field(gt=0, le=366)] = Field(
        default=7.0, description="Days for which the links in a message are good."
    )
    alert_keep_days: Annotated[float, Field(gt=0)] = Field(
        default=90.0, description="Days for which messages that were sent are kept."
    )

    @field_validator("alert_networks", mode="before")
    @classmethod
    def _split_networks(cls, value: Any) -> Any:
        return value.replace(",", " ").split() if isinstance(value, str) else value

    @field_validator("alert_networks")
    @classmethod
    def _are_networks(cls, networks: list[str]) -> list[str]:
        EgressPolicy.allowing(networks)
        return networks

    @field_validator("alert_channels", mode="before")
    @classmethod
    def _read(cls, channels: Any) -> Any:
        """As text, from a file of their own; without a kind they are webhooks."""
        read = json.loads(channels) if isinstance(channels, str) else channels
        plain = isinstance(read, list) and all(isinstance(one, dict) for one in read)
        return [{"kind": "webhook", **one} for one in read] if plain else read

    @field_validator("public_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError("it must be like https://host/path")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _names_are_their_own(self) -> Self:
        names = [channel.name for channel in self.alert_channels]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"alert_channels: {', '.join(sorted(twice))} is there twice")
        return self

    @property
    def alert_timing(self) -> Timing:
        """When to speak."""
        return Timing(
            group_wait=self.alert_group_wait,
            repeat_after=self.alert_repeat_after,
            resolved=self.alert_resolved,
        )
