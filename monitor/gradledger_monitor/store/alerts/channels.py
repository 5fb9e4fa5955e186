"""Channels and routes that were made in the service, and the state of all channels."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select, update

from gradledger_monitor.store import dialects
from gradledger_monitor.store.alerts import due, outbox
from gradledger_monitor.store.alerts.tables import channels, keys, routes
from gradledger_monitor.store.database import Store

KEY_BYTES = 32


@dataclass(frozen=True)
class ChannelState:
    """Whether a channel is sent to. Times are Unix seconds."""

    disabled: float | None = None
    why: str | None = None
    held_until: float | None = None


@dataclass(frozen=True)
class ChannelRow:
    """A channel that was made here or, without ``config``, the state of one in the settings."""

    name: str
    config: dict[str, Any] | None
    state: ChannelState


def stored_channels(store: Store) -> list[ChannelRow]:
    """All channels that the database knows, by name."""
    with store.reading() as connection:
        rows = connection.execute(select(channels).order_by(channels.c.name)).all()
    return [
        ChannelRow(row.name, row.config, ChannelState(row.disabled, row.why, row.held_until))
        for row in rows
    ]


def stored_routes(store: Store) -> list[dict[str, Any]]:
    """The routes that were made here, in order."""
    with store.reading() as connection:
        return list(connection.scalars(select(routes.c.config).order_by(routes.c.position)))


def save(store: Store, name: str, config: dict[str, Any], now: float) -> bool:
    """Create or replace a channel and return whether it is new. It is enabled again."""
    values = {"config": config, "disabled": None, "why": None, "held_until": None}
    with store.writing() as connection:
        matching = update(channels).where(channels.c.name == name)
        changed = connection.execute(matching.values(values)).rowcount
        if not changed:
            row = {"name": name, "created": now, **values}
            connection.execute(insert(channels).values(row))
        due.request_all(connection, now)
    return not changed


def remove(store: Store, name: str, now: float) -> bool:
    """Forget a channel that was made here; whether there was one. What waits for it is dead."""
    with store.writing() as connection:
        made_here = (channels.c.name == name, channels.c.config.is_not(None))
        if connection.execute(select(channels.c.name).where(*made_here)).first() is None:
            return False
        outbox.disable_channel(connection, name, "the channel was removed", now)
        connection.execute(delete(channels).where(channels.c.name == name))
    return True


def switch(store: Store, name: str, on: bool, now: float) -> None:
    """Send to a channel again, or nothing more."""
    with store.writing() as connection:
        if not on:
            outbox.disable_channel(connection, name, "switched off by a person", now)
            return
        clear: dict[str, Any] = {"disabled": None, "why": None, "held_until": None}
        connection.execute(update(channels).where(channels.c.name == name).values(clear))
        due.request_all(connection, now)


def save_routes(store: Store, configs: Sequence[dict[str, Any]], now: float) -> None:
    """Replace all routes that were made here."""
    rows = [{"position": position, "config": config} for position, config in enumerate(configs)]
    with store.writing() as connection:
        connection.execute(delete(routes))
        if rows:
            connection.execute(insert(routes), rows)
        due.request_all(connection, now)


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
