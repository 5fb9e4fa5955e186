"""Channels and routes that were created in the service, and the state of all channels."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, delete, insert, select, update

from gradledger_monitor.store import dialects
from gradledger_monitor.store.alerts import due, earlier_findings, outbox
from gradledger_monitor.store.alerts.tables import channels, keys, notifications, routes
from gradledger_monitor.store.database import Store

KEY_BYTES = 32


@dataclass(frozen=True)
class ChannelState:
    """Whether messages are sent to a channel. Times are Unix seconds."""

    disabled: float | None = None
    why: str | None = None
    held_until: float | None = None


@dataclass(frozen=True)
class ChannelRow:
    """A channel created in the service or, without ``config``, the state of one in the settings."""

    name: str
    config: dict[str, Any] | None
    state: ChannelState


def stored_channels(store: Store) -> list[ChannelRow]:
    """All channels in the database, by name."""
    with store.reading() as connection:
        rows = connection.execute(select(channels).order_by(channels.c.name)).all()
    return [ChannelRow(name=row.name, config=row.config, state=_state(row)) for row in rows]


def _state(row: Row[Any]) -> ChannelState:
    return ChannelState(disabled=row.disabled, why=row.why, held_until=row.held_until)


def stored_routes(store: Store) -> list[dict[str, Any]]:
    """The routes created in the service, in order."""
    with store.reading() as connection:
        return list(connection.scalars(select(routes.c.config).order_by(routes.c.position)))


def save(store: Store, name: str, config: dict[str, Any], now: float) -> bool:
    """Create or replace a channel and return whether it is new. It is enabled again.

    A new channel starts now: findings that are open already are not sent to it.
    """
    values = {"config": config, "disabled": None, "why": None, "held_until": None}
    with store.writing() as connection:
        matching = update(channels).where(channels.c.name == name)
        changed = connection.execute(matching.values(values)).rowcount
        if not changed:
            row = {"name": name, "created": now, **values}
            connection.execute(insert(channels).values(row))
            earlier_findings.skip_open(connection, name, now)
        due.request_all(connection, now)
    return not changed


def register(store: Store, names: Sequence[str], now: float) -> None:
    """Store which channels the settings have. Like those that are created, a new one starts now."""
    if not names:
        return
    with store.writing() as connection:
        for name in names:
            row = {"name": name, "created": now}
            statement = dialects.insert(connection, channels).values(row)
            new = statement.on_conflict_do_nothing().returning(channels.c.name)
            if connection.execute(new).first() is not None:
                earlier_findings.skip_open(connection, name, now)


def remove(store: Store, name: str, now: float) -> bool:
    """Remove a channel created in the service; return whether there was one.

    Messages that wait for it are dead.
    """
    with store.writing() as connection:
        created = (channels.c.name == name, channels.c.config.is_not(None))
        if connection.execute(select(channels.c.name).where(*created)).first() is None:
            return False
        outbox.disable_channel(connection, name, "the channel was removed", now)
        connection.execute(delete(channels).where(channels.c.name == name))
        connection.execute(delete(notifications).where(notifications.c.channel == name))
    return True


def switch(store: Store, name: str, on: bool, now: float) -> None:
    """Enable or disable a channel."""
    with store.writing() as connection:
        if not on:
            outbox.disable_channel(connection, name, "switched off by a person", now)
            return
        clear: dict[str, Any] = {"disabled": None, "why": None, "held_until": None}
        connection.execute(update(channels).where(channels.c.name == name).values(clear))
        due.request_all(connection, now)


def save_routes(store: Store, configs: Sequence[dict[str, Any]], now: float) -> None:
    """Replace all routes created in the service."""
    rows = [{"position": position, "config": config} for position, config in enumerate(configs)]
    with store.writing() as connection:
        connection.execute(delete(routes))
        if rows:
            connection.execute(insert(routes), rows)
        due.request_all(connection, now)


def key(store: Store, name: str) -> bytes:
    """A secret key of this database, created on first use."""
    with store.reading() as connection:
        value = connection.scalar(select(keys.c.value).where(keys.c.name == name))
    if value is not None:
        return bytes(value)
    with store.writing() as connection:
        row = {"name": name, "value": secrets.token_bytes(KEY_BYTES)}
        connection.execute(dialects.insert(connection, keys).on_conflict_do_nothing(), row)
        return bytes(connection.scalar(select(keys.c.value).where(keys.c.name == name)) or b"")
