"""Run by Alembic, on the connection that the service passes or on the database of the settings."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection

from gradledger_monitor.config.settings import Settings
from gradledger_monitor.store.alerts import tables  # noqa: F401 (adds to the metadata)
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import Packed
from gradledger_monitor.store.tables import metadata


def render(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Render ``Packed`` as the plain type under it: migrations import nothing of gradledger."""
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


open_connection = context.config.attributes.get("connection")
if open_connection is not None:
    migrate(open_connection)
else:
    store = Store(context.config.attributes.get("url") or Settings().db)
    with store.writing() as new_connection:
        migrate(new_connection)
    store.close()
