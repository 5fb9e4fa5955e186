"""The database for operators: its revision, size and rows, and how to reclaim space."""

from __future__ import annotations

from alembic.migration import MigrationContext
from sqlalchemy import func, inspect, select, text

from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import metadata

_SIZE = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    "postgresql": "SELECT pg_database_size(current_database())",
}


def revision(store: Store) -> str | None:
    """The revision of the tables; None if there are none."""
    with store.reading() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def size(store: Store) -> int:
    """The size of the database in bytes."""
    with store.reading() as connection:
        return int(connection.scalar(text(_SIZE[store.engine.dialect.name])) or 0)


def rows(store: Store) -> dict[str, int]:
    """Numbers of rows by table, of the tables that exist."""
    with store.reading() as connection:
        names = set(inspect(connection).get_table_names())
        tables = [table for table in metadata.sorted_tables if table.name in names]
        count = {t.name: connection.scalar(select(func.count()).select_from(t)) for t in tables}
    return {name: number or 0 for name, number in sorted(count.items())}


def vacuum(store: Store) -> None:
    """Reclaim the space of removed rows, and update the statistics of the query planner."""
    autocommit = store.engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection:
        if store.engine.dialect.name == "postgresql":
            connection.exec_driver_sql("VACUUM (ANALYZE)")
            return
        driver = connection.connection.dbapi_connection
        assert driver is not None
        for statement in ("VACUUM", "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"):
            driver.execute(statement)
