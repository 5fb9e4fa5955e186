"""All channels and routes: those of the settings and those that were made in the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradledger_monitor.alerts.configuration import AnyChannel, Route, channel_of, plain
from gradledger_monitor.store.alerts import channels
from gradledger_monitor.store.alerts.channels import ChannelState
from gradledger_monitor.store.database import Store


@dataclass(frozen=True)
class Roster:
    """All channels and routes. A name in the settings takes precedence over one made here."""

    channels: Mapping[str, AnyChannel]
    routes: Sequence[Route]
    from_settings: frozenset[str] = frozenset()  # names of channels
    states: Mapping[str, ChannelState] = field(default_factory=dict)

    @property
    def usable(self) -> set[str]:
        """Channels that are not disabled."""
        return {name for name in self.channels if self.state(name).disabled is None}

    def state(self, name: str) -> ChannelState:
        """Whether a channel is sent to."""
        return self.states.get(name, ChannelState())


def load(store: Store, configured: Sequence[AnyChannel], routes: Sequence[Route]) -> Roster:
    """The stored channels and routes, together with those of the settings."""
    rows = channels.stored_channels(store)
    stored = {row.name: channel_of(row.config) for row in rows if row.config is not None}
    by_name = {channel.name: channel for channel in configured}
    states = {row.name: row.state for row in rows}
    all_routes = [*routes, *stored_routes(store)]
    return Roster({**stored, **by_name}, all_routes, frozenset(by_name), states)


def stored_routes(store: Store) -> list[Route]:
    """The routes that were made in the service."""
    return [Route(**config) for config in channels.stored_routes(store)]


def save_channel(store: Store, channel: AnyChannel, now: float) -> bool:
    """Create or replace a channel and return whether it is new."""
    return channels.save(store, channel.name, plain(channel), now)


def save_routes(store: Store, routes: Sequence[Route], now: float) -> None:
    """Replace all routes that were made in the service."""
    channels.save_routes(store, [route.model_dump() for route in routes], now)
