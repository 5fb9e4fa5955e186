"""Run by Alembic: on the connection that the service hands over, else on the set database."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection

from gradledger_monitor.config.settings import Settings
from gradledger_monitor.store.alerts import tables  # noqa: F401 (of the same metadata)
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import Packed
from gradledger_monitor.store.tables import metadata


def render(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Write our own column type as the plain one under it: a migration imports nothing of ours."""
    return "sa.LargeBinary()" if kind == "type" and isinstance(item, Packed) else False


def migrate(connection: Connection) -> None:
    """Run the migrations within the transaction of this connection."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transactional_ddl=True,
        render_item=render,
        render_as_batch=True,  # SQLite cannot alter a column in place
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    store = Store(context.config.attributes.get("url") or Settings().db)
    with store.writing() as own:
        migrate(own)
    store.close()
