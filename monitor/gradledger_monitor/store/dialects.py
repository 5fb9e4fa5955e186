"""Everything that differs between SQLite and Postgres."""

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

# an INSERT that supports ON CONFLICT, by dialect
INSERT: dict[str, Callable[[Table], Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}
SUPPORTED = tuple(INSERT)
WRITES = "gradledger_writes"  # execution option: this connection begins as a writer
MIGRATION_SECONDS = 60  # for one process to wait while another migrates
CONNECT_SECONDS = 5
SQLITE_CONNECTIONS = 64  # more than threads that could use one: 40 of requests, and workers
POOL_SECONDS = 3
MIGRATING = 0x676D << 48  # number of an advisory lock, which no claim has


def insert(connection: Connection, table: Table) -> Insert:
    """An INSERT that supports ON CONFLICT, in the dialect of this database."""
    return INSERT[connection.dialect.name](table)


def insert_many(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> tuple[Insert, Any]:
    """An INSERT of rows with the same keys, and the parameters to execute it with.

    Postgres receives one array per column in one statement, instead of one statement per row.
    """
    if connection.dialect.name != "postgresql":
        return sqlite.insert(table), rows
    names = list(rows[0])
    arrays = (bindparam(name, type_=postgresql.ARRAY(table.c[name].type)) for name in names)
    unnested = func.unnest(*arrays).table_valued(*names).render_derived()
    statement = postgresql.insert(table).from_select(names, select(*unnested.c))
    return statement, {name: [row[name] for row in rows] for name in names}


def load(
    connection: Connection, table: Table, names: Sequence[str], rows: Sequence[Sequence[Any]]
) -> bool:
    """Insert rows in the fastest way of the driver; return False, and insert none, if one exists.

    ``rows`` are values that the driver accepts unchanged, in the order of ``names``.
    """
    into = f"{table.name} ({', '.join(names)})"
    try:
        with connection.begin_nested():
            if connection.dialect.name == "postgresql":
                _copy(connection, into, [table.c[name].type for name in names], rows)
            else:
                placeholders = ", ".join("?" * len(names))
                # names of tables and columns are constants
                statement = f"INSERT INTO {into} VALUES ({placeholders})"  # nosec B608
                connection.exec_driver_sql(statement, list(rows))
    except (IntegrityError, connection.dialect.loaded_dbapi.IntegrityError):
        return False
    return True


def _copy(
    connection: Connection, into: str, types: Sequence[TypeEngine[Any]], rows: Iterable[Any]
) -> None:
    new_cursor: Any = connection.connection.cursor()
    with new_cursor as cursor, cursor.copy(f"COPY {into} FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types([kind.compile(connection.dialect).lower() for kind in types])
        for row in rows:
            copy.write_row(row)


def without_nul(text: str) -> str:
    """A text that both databases store: Postgres refuses NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def wait_for_migrations(connection: Connection) -> None:
    """If several processes start at once, one migrates and the others wait for its transaction.

    On SQLite, a write transaction excludes all others already.
    """
    if connection.dialect.name == "postgresql":
        # another process may migrate a large table, which takes longer than other locks are held
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{MIGRATION_SECONDS}s'")
        connection.execute(select(func.pg_advisory_xact_lock(MIGRATING)))


def in_memory(url: URL) -> bool:
    """Whether the database exists only in one connection of this process."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def engine_options(url: URL) -> dict[str, Any]:
    """The arguments of ``create_engine`` for this database."""
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
    """Make commits durable, and begin SQLite's transactions here instead of in its driver.

    Statements wait at most ``wait`` seconds for a lock. For messages, errors have the address of
    the database, without its password, in the attribute ``database``.
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
    # a server may be configured not to wait, but senders delete what is acknowledged
    durable = "SELECT set_config('synchronous_commit', 'on', false)"
    connection.execute(f"{durable} WHERE current_setting('synchronous_commit') = 'off'")
    connection.commit()


def _on_sqlite_connect(milliseconds: int, connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver begins no transaction: see below
    connection.execute(f"PRAGMA busy_timeout = {milliseconds}")
    connection.execute("PRAGMA journal_mode = WAL")
    # NORMAL survives a killed process, FULL also a machine that loses power. Senders delete their
    # copy when it is acknowledged, so each batch waits once for the disk.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _on_sqlite_begin(connection: Connection) -> None:
    # A writer that begins as a reader can fail on commit if another one wrote in between.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
