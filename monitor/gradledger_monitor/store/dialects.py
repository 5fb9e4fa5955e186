"""What differs between SQLite and Postgres, and nothing that does not."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, Table, bindparam, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool
from sqlalchemy.types import TypeEngine

Insert = sqlite.Insert | postgresql.Insert

# an INSERT that has ON CONFLICT, in the words of each database
INSERT: dict[str, Callable[[Table], Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}
KNOWN = tuple(INSERT)
WRITES = "gradledger_writes"  # execution option: this connection begins as a writer
MIGRATION_SECONDS = 60  # for one process to wait while another migrates
CONNECT_SECONDS = 5
SQLITE_CONNECTIONS = 64  # more than threads that could use one: 40 of requests, workers, our own
POOL_SECONDS = 3
MIGRATING = 0x676D << 48  # a lock number beside those of `claims`


def insert(connection: Connection, table: Table) -> Insert:
    """An INSERT that has ON CONFLICT, in the words of this database."""
    return INSERT[connection.dialect.name](table)


def insert_many(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> tuple[Insert, Any]:
    """An INSERT of rows that have the same keys, and what to execute it with.

    Postgres takes them as one array a column, in one statement rather than one for each row.
    """
    if connection.dialect.name != "postgresql":
        return sqlite.insert(table), rows
    names = list(rows[0])
    arrays = (bindparam(name, type_=postgresql.ARRAY(table.c[name].type)) for name in names)
    lined_up = func.unnest(*arrays).table_valued(*names).render_derived()
    statement = postgresql.insert(table).from_select(names, select(*lined_up.c))
    return statement, {name: [row[name] for row in rows] for name in names}


def load(
    connection: Connection, table: Table, names: Sequence[str], rows: Sequence[Sequence[Any]]
) -> bool:
    """Insert rows in the driver's fastest way; False, and nothing is, where one is there already.

    ``rows`` hold what the driver takes as it is, in the order of ``names``.
    """
    into = f"{table.name} ({', '.join(names)})"
    try:
        with connection.begin_nested():
            if connection.dialect.name == "postgresql":
                _copy(connection, into, [table.c[name].type for name in names], rows)
            else:
                marks = ", ".join("?" * len(names))
                # of tables and columns of ours alone
                statement = f"INSERT INTO {into} VALUES ({marks})"  # nosec B608
                connection.exec_driver_sql(statement, list(rows))
    except (IntegrityError, connection.dialect.loaded_dbapi.IntegrityError):
        return False
    return True


def _copy(
    connection: Connection, into: str, types: Sequence[TypeEngine[Any]], rows: Iterable[Any]
) -> None:
    opened: Any = connection.connection.cursor()
    with opened as cursor, cursor.copy(f"COPY {into} FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types([kind.compile(connection.dialect).lower() for kind in types])
        for row in rows:
            copy.write_row(row)


def without_nul(text: str) -> str:
    """A text that both databases store: Postgres refuses NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def wait_for_migrations(connection: Connection) -> None:
    """Of several that start at once, one migrates; the others wait until its transaction ends.

    On SQLite, whoever began to write is alone already.
    """
    if connection.dialect.name == "postgresql":
        # another process may migrate a large table, which takes longer than any other lock
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{MIGRATION_SECONDS}s'")
        connection.execute(select(func.pg_advisory_xact_lock(MIGRATING)))


def in_memory(url: URL) -> bool:
    """Whether the database lives in one connection of this process only."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def engine_options(url: URL) -> dict[str, Any]:
    """What ``create_engine`` needs to be told for this database."""
    if url.get_backend_name() == "postgresql":
        name = url.query.get("application_name", f"gradledger {os.getpid()}")
        wait = url.query.get("connect_timeout", CONNECT_SECONDS)
        arguments = {"application_name": name, "connect_timeout": wait}
        return {
            "pool_pre_ping": True,
            "pool_timeout": POOL_SECONDS,
            "connect_args": arguments,
        }
    options: dict[str, Any] = {"connect_args": {"check_same_thread": False}}
    if in_memory(url):
        return {**options, "poolclass": StaticPool}
    return {**options, "max_overflow": SQLITE_CONNECTIONS, "pool_timeout": POOL_SECONDS}


def prepare(engine: Engine, wait: float) -> None:
    """Make commits wait for the disk, and take SQLite's transactions away from its driver.

    Statements wait at most ``wait`` seconds for a lock. Errors carry the database's address
    without its password in ``database``, for messages.
    """
    event.listen(engine, "handle_error", _name_database)
    milliseconds = round(wait * 1000)
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", partial(_on_postgres_connect, milliseconds))
        return
    event.listen(engine, "connect", partial(_on_sqlite_connect, milliseconds))
    event.listen(engine, "begin", _on_sqlite_begin)


def _name_database(context: ExceptionContext) -> None:
    if context.engine is not None and context.sqlalchemy_exception is not None:
        url = context.engine.url
        address = url.database if url.get_backend_name() == "sqlite" else str(url)
        context.sqlalchemy_exception.__dict__["database"] = address


def locked() -> OperationalError:
    """The error of a statement that waited too long for another process."""
    return OperationalError("BEGIN IMMEDIATE", {}, sqlite3.OperationalError("database is locked"))


def is_locked(error: OperationalError) -> bool:
    """Whether another process holds the lock of an SQLite database."""
    return "database is locked" in str(error.orig)


def _on_postgres_connect(milliseconds: int, connection: Any, _: ConnectionPoolEntry) -> None:
    connection.execute(f"SET lock_timeout = {milliseconds}")
    # a server may be told not to wait; what we acknowledge, the sender deletes
    wait = "SELECT set_config('synchronous_commit', 'on', false)"
    connection.execute(f"{wait} WHERE current_setting('synchronous_commit') = 'off'")
    connection.commit()


def _on_sqlite_connect(milliseconds: int, connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver begins nothing: we do, below
    connection.execute(f"PRAGMA busy_timeout = {milliseconds}")
    connection.execute("PRAGMA journal_mode = WAL")
    # NORMAL survives a killed process; FULL also a machine that loses power. The sender deletes
    # its copy once we acknowledge, so we wait for the disk, once per batch.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _on_sqlite_begin(connection: Connection) -> None:
    # A writer that began as a reader can fail on commit, when another wrote in between.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
