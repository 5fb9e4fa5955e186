"""Channels and routes that were made in the service, and how all channels stand."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, insert, select, update

from gradledger_monitor.alerts.configuration import (
    Alertmanager,
    Apprise,
    Route,
    Webhook,
    channel_of,
    plain,
)
from gradledger_monitor.store import attention, dialects, outbox
from gradledger_monitor.store.alert_tables import channels, keys, routes
from gradledger_monitor.store.database import Store

KEY_BYTES = 32
AnyChannel = Webhook | Apprise | Alertmanager


@dataclass(frozen=True)
class Standing:
    """How a channel stands. Times are Unix seconds."""

    disabled: float | None = None
    why: str | None = None
    held_until: float | None = None


@dataclass(frozen=True)
class Roster:
    """All channels and routes, of the settings and made here; the settings' names come first."""

    channels: Mapping[str, AnyChannel]
    routes: Sequence[Route]
    given: frozenset[str] = frozenset()  # names that the settings define
    standing: Mapping[str, Standing] = field(default_factory=dict)

    @property
    def usable(self) -> set[str]:
        """Channels that are not switched off."""
        return {n for n in self.channels if self.how(n).disabled is None}

    def how(self, name: str) -> Standing:
        """How a channel stands."""
        return self.standing.get(name, Standing())


class GivenInSettings(Exception):
    """A channel of that name is defined in the settings, and changed there."""


def roster(store: Store, given: Sequence[AnyChannel], given_routes: Sequence[Route]) -> Roster:
    """Everything that is known of channels, with what the settings say."""
    ours = {channel.name: channel for channel in given}
    with store.reading() as connection:
        rows = connection.execute(select(channels).order_by(channels.c.name)).all()
        made = connection.execute(select(routes.c.config).order_by(routes.c.position)).scalars()
        also = [Route(**config) for config in made]
    here = {row.name: channel_of(row.config) for row in rows if row.config is not None}
    standing = {row.name: Standing(row.disabled, row.why, row.held_until) for row in rows}
    return Roster({**here, **ours}, [*given_routes, *also], frozenset(ours), standing)


def save(store: Store, channel: AnyChannel, now: float) -> bool:
    """Make a channel, or replace it; whether it is new. A channel that was off is on again."""
    config = plain(channel)
    told = {"config": config, "disabled": None, "why": None, "held_until": None}
    with store.writing() as connection:
        here = update(channels).where(channels.c.name == channel.name)
        changed = connection.execute(here.values(told)).rowcount
        if not changed:
            row = {"name": channel.name, "created": now, **told}
            connection.execute(insert(channels).values(row))
        attention.look_at_all(connection, now)
    return not changed


def remove(store: Store, name: str, now: float) -> bool:
    """Forget a channel that was made here; whether there was one. What waits for it is dead."""
    with store.writing() as connection:
        made_here = (channels.c.name == name, channels.c.config.is_not(None))
        if connection.execute(select(channels.c.name).where(*made_here)).first() is None:
            return False
        outbox.switch_off(connection, name, "the channel was removed", now)
        connection.execute(delete(channels).where(channels.c.name == name))
    return True


def switch(store: Store, name: str, on: bool, now: float) -> None:
    """Send to a channel again, or nothing more."""
    with store.writing() as connection:
        if not on:
            outbox.switch_off(connection, name, "switched off by a person", now)
            return
        clear: dict[str, Any] = {"disabled": None, "why": None, "held_until": None}
        connection.execute(update(channels).where(channels.c.name == name).values(clear))
        attention.look_at_all(connection, now)


def save_routes(store: Store, all_: Sequence[Route], now: float) -> None:
    """Replace all routes that were made here."""
    rows = [{"position": at, "config": route.model_dump()} for at, route in enumerate(all_)]
    with store.writing() as connection:
        connection.execute(delete(routes))
        if rows:
            connection.execute(insert(routes), rows)
        attention.look_at_all(connection, now)


def key(store: Store, name: str) -> bytes:
    """A key that only this database knows, made on first use."""
    with store.reading() as connection:
        known = connection.scalar(select(keys.c.value).where(keys.c.name == name))
    if known is not None:
        return bytes(known)
    with store.writing() as connection:
        row = {"name": name, "value": secrets.token_bytes(KEY_BYTES)}
        connection.execute(dialects.insert(connection, keys).on_conflict_do_nothing(), row)
        return bytes(connection.scalar(select(keys.c.value).where(keys.c.name == name)) or b"")
