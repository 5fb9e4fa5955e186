"""Overrides that people set in the service, by name, each with the number of its changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import inspect, select, update

from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import overrides

RULES, RETENTION = "rules", "retention"


class OverridesChanged(Exception):
    """Somebody else changed the overrides in the meantime."""


@dataclass(frozen=True)
class StoredOverrides:
    """The overrides of a name; ``revision`` is 0 if they were never set. Times are Unix seconds."""

    value: dict[str, Any] = field(default_factory=dict)
    revision: int = 0
    changed: float | None = None


def table_exists(store: Store) -> bool:
    """Whether the database has the table of overrides."""
    with store.reading() as connection:
        return inspect(connection).has_table(overrides.name)


def read(store: Store, name: str) -> StoredOverrides:
    """The current overrides of a name."""
    query = select(overrides.c.value, overrides.c.revision, overrides.c.changed)
    with store.reading() as connection:
        row = connection.execute(query.where(overrides.c.name == name)).first()
    return StoredOverrides(**row._asdict()) if row else StoredOverrides()


def write(
    store: Store, name: str, value: dict[str, Any], now: float, expected_revision: int | None
) -> None:
    """Replace overrides; raises ``OverridesChanged`` if their revision is another one."""
    empty = {"name": name, "value": {}, "revision": 0, "changed": now}
    of_name = overrides.c.name == name
    with store.writing() as connection:
        connection.execute(dialects.insert(connection, overrides).on_conflict_do_nothing(), empty)
        revision = (
            connection.scalar(select(overrides.c.revision).where(of_name).with_for_update()) or 0
        )
        if expected_revision not in (None, revision):
            raise OverridesChanged
        new = {"value": value, "revision": revision + 1, "changed": now}
        connection.execute(update(overrides).where(of_name).values(new))
