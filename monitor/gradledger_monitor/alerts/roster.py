"""All channels and routes: those of the settings and those that were created over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradledger_monitor.alerts.configuration import (
    AnyChannel,
    Route,
    dump_with_secrets,
    parse_channel,
)
from gradledger_monitor.alerts.routing import Routing
from gradledger_monitor.store.alerts import channels, earlier_findings
from gradledger_monitor.store.alerts.channels import ChannelState
from gradledger_monitor.store.alerts.earlier_findings import SkippedFinding
from gradledger_monitor.store.database import Store


@dataclass(frozen=True)
class Roster:
    """All channels and routes. A channel in the settings replaces a stored one with its name."""

    channels: Mapping[str, AnyChannel]
    routes: Sequence[Route]
    from_settings: frozenset[str] = frozenset()  # names of channels
    states: Mapping[str, ChannelState] = field(default_factory=dict)

    @property
    def enabled(self) -> set[str]:
        """Names of the channels that are not disabled."""
        return {name for name in self.channels if self.state(name).disabled is None}

    @property
    def routing(self) -> Routing:
        """Which findings go to which of the enabled channels."""
        return Routing(self.enabled, self.routes)

    def state(self, name: str) -> ChannelState:
        """Whether a channel is disabled or held."""
        return self.states.get(name, ChannelState())


def load(store: Store, configured: Sequence[AnyChannel], routes: Sequence[Route]) -> Roster:
    """The stored channels and routes, together with those of the settings."""
    rows = channels.stored_channels(store)
    stored = {row.name: parse_channel(row.config) for row in rows if row.config is not None}
    by_name = {channel.name: channel for channel in configured}
    return Roster(
        channels={**stored, **by_name},
        routes=[*routes, *stored_routes(store)],
        from_settings=frozenset(by_name),
        states={row.name: row.state for row in rows},
    )


def stored_routes(store: Store) -> list[Route]:
    """The routes that were created over HTTP."""
    return [Route(**config) for config in channels.stored_routes(store)]


def skipped_findings(store: Store, roster: Roster, now: float) -> dict[str, list[SkippedFinding]]:
    """By enabled channel: the open findings from before it was added, which were not sent to it."""
    routing = roster.routing
    by_channel: dict[str, list[SkippedFinding]] = {}
    for finding in earlier_findings.skipped(store, now):
        if finding.channel in routing.channels_for(finding, finding.project, finding.name):
            by_channel.setdefault(finding.channel, []).append(finding)
    return by_channel


def save_channel(store: Store, channel: AnyChannel, now: float) -> bool:
    """Create or replace a channel and return whether it is new."""
    return channels.save(store, channel.name, dump_with_secrets(channel), now)


def save_routes(store: Store, routes: Sequence[Route], now: float) -> None:
    """Replace all routes that were created over HTTP."""
    channels.save_routes(store, [route.model_dump() for route in routes], now)
