"""What people chose in the service, by name, each with the number of its changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import inspect, select, update

from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import overrides

RULES, RETENTION = "rules", "retention"


class OverridesChanged(Exception):
    """It was changed by somebody else in the meantime."""


@dataclass(frozen=True)
class StoredOverrides:
    """What was overrides last; ``revision`` is 0 where nothing ever was. Times are Unix seconds."""

    value: dict[str, Any] = field(default_factory=dict)
    revision: int = 0
    changed: float | None = None


def table_exists(store: Store) -> bool:
    """Whether the database has come so far that anything can have been overrides."""
    with store.reading() as connection:
        return inspect(connection).has_table(overrides.name)


def read(store: Store, name: str) -> StoredOverrides:
    """What is overrides now."""
    query = select(overrides.c.value, overrides.c.revision, overrides.c.changed)
    with store.reading() as connection:
        row = connection.execute(query.where(overrides.c.name == name)).first()
    return StoredOverrides(*row) if row else StoredOverrides()


def write(store: Store, name: str, value: dict[str, Any], now: float, seen: int | None) -> None:
    """Choose otherwise; raises ``OverridesChanged`` where ``seen`` is not what is overrides now."""
    nothing = {"name": name, "value": {}, "revision": 0, "changed": now}
    here = overrides.c.name == name
    with store.writing() as connection:
        connection.execute(dialects.insert(connection, overrides).on_conflict_do_nothing(), nothing)
        revision = (
            connection.scalar(select(overrides.c.revision).where(here).with_for_update()) or 0
        )
        if seen not in (None, revision):
            raise OverridesChanged
        new = {"value": value, "revision": revision + 1, "changed": now}
        connection.execute(update(overrides).where(here).values(new))
