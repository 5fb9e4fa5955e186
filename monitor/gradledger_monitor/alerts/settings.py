"""The settings of alerts. More channels and routes can be created over HTTP."""

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

NameList = Annotated[list[str], NoDecode]  # in the environment: a,b,c
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
DAY = 86_400.0


class AlertSettings(BaseSettings):
    """Channels, routes, timing, and where messages can be sent."""

    public_url: str | None = Field(
        default=None,
        description="URL under which people reach the service, for links in messages: "
        "https://host/path. Default: its own address.",
    )
    alert_channels: list[Channel] = Field(
        default_factory=list,
        description="Channels to send alerts to, as JSON or in the file.",
    )
    alert_routes: list[Route] = Field(
        default_factory=list,
        description="Which findings go to which channels; without routes, every channel gets "
        "warnings and errors.",
    )
    alert_group_wait: Seconds = Field(
        default=30.0,
        description="Seconds that new findings of a run wait to be grouped; errors do not wait.",
    )
    alert_repeat_after: Annotated[float, Field(ge=60, allow_inf_nan=False)] = Field(
        default=4 * 3600.0, description="Seconds after which an ongoing finding is re-sent."
    )
    alert_resolved: bool = Field(default=True, description="Whether to send resolutions.")
    alert_timeout: Annotated[float, Field(gt=0, le=120)] = Field(
        default=15.0, description="Timeout of one attempt to send, in seconds."
    )
    alert_retries: Annotated[list[Seconds], Field(max_length=100)] = Field(
        default_factory=lambda: list(DELAYS),
        description="Seconds before each retry, with a jitter of 20%.",
    )
    alert_networks: NameList = Field(
        default_factory=list,
        description="Private networks that messages can be sent to, such as 10.0.0.0/8.",
    )
    alert_link_days: Annotated[float, Field(gt=0, le=366)] = Field(
        default=7.0, description="Days for which the links in a message are valid."
    )
    alert_keep_days: Annotated[float, Field(gt=0)] = Field(
        default=90.0, description="Days for which sent messages are kept."
    )

    @field_validator("alert_networks", mode="before")
    @classmethod
    def _split_networks(cls, value: Any) -> Any:
        """Split ``a,b``, and the form in which settings are shown: ``["a", "b"]``."""
        if not isinstance(value, str):
            return value
        return value.translate(str.maketrans(",[]\"'", "     ")).split()

    @field_validator("alert_networks")
    @classmethod
    def _are_networks(cls, networks: list[str]) -> list[str]:
        try:
            EgressPolicy.allowing(networks)
        except ValueError as error:
            raise ValueError(f"{error}. Use networks such as 10.0.0.0/8, 192.168.1.7") from error
        return networks

    @field_validator("alert_channels", mode="before")
    @classmethod
    def _parse_channels(cls, channels: Any) -> Any:
        """Parse JSON text; a channel without a kind is a webhook."""
        configs = json.loads(channels) if isinstance(channels, str) else channels
        if not isinstance(configs, list) or not all(isinstance(c, dict) for c in configs):
            return configs  # pydantic reports it
        return [{"kind": "webhook", **config} for config in configs]

    @field_validator("public_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError("it must have the form https://host/path")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [channel.name for channel in self.alert_channels]
        duplicates = {name for name in names if names.count(name) > 1}
        if duplicates:
            raise ValueError(f"alert_channels: duplicate names {', '.join(sorted(duplicates))}")
        return self

    @property
    def alert_timing(self) -> Timing:
        """When to send."""
        return Timing(
            group_wait=self.alert_group_wait,
            repeat_after=self.alert_repeat_after,
            resolved=self.alert_resolved,
        )
