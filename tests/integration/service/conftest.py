"""Fixtures: servers and stores, each on the embedded database and on Postgres."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from gradledger_monitor.store.database import Store
from helpers.postgres import Postgres, running_postgres
from helpers.sending import new_database
from helpers.service import Service, running_service

Databases = Callable[..., str]  # the URL of a new database: an empty one, or like another


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A Postgres server for all tests of this process."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    """Which database a test runs on: both, one after the other."""
    return str(request.param)


@pytest.fixture
def databases(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Makes new, empty databases."""
    with _databases(backend, tmp_path, request) as make:
        yield make


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a database with all tables and no row."""
    return new_database(tmp_path_factory.mktemp("migrated") / "empty.db")


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Postgres) -> str:
    """The same on Postgres."""
    url = postgres.create()
    store = Store(url)
    store.migrate()
    store.close()
    return url


@pytest.fixture(scope="module")
def migrated(backend: str, request: pytest.FixtureRequest) -> str:
    """The one of this backend. To copy it is faster than to migrate once more."""
    return str(request.getfixturevalue(f"migrated_{backend}"))


@pytest.fixture
def database(databases: Databases, migrated: str) -> str:
    """The URL of a new database with all tables."""
    return databases(migrated)


@pytest.fixture
def stores(databases: Databases, migrated: str) -> Iterator[Callable[[], Store]]:
    """Makes such databases."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Store(databases(migrated))))


@pytest.fixture
def store(stores: Callable[[], Store]) -> Store:
    """One."""
    return stores()


@pytest.fixture(scope="module")
def module_databases(
    backend: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Databases]:
    """Makes databases for all tests of a file."""
    with _databases(backend, tmp_path_factory.mktemp("databases"), request) as make:
        yield make


@pytest.fixture(scope="module")
def service(module_databases: Databases, migrated: str) -> Iterator[Service]:
    """A running service; runs in it are kept apart by their ids."""
    with running_service(module_databases(migrated)) as running:
        yield running


@contextmanager
def _databases(backend: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Databases]:
    made: list[str] = []

    def sqlite(like: str = "") -> str:
        made.append(f"sqlite:///{folder / f'{len(made)}.db'}")
        if like:
            shutil.copyfile(*(url.removeprefix("sqlite:///") for url in (like, made[-1])))
        return made[-1]

    def postgres(like: str = "") -> str:
        made.append(server.create(like))
        return made[-1]

    if backend == "sqlite":
        yield sqlite
        return
    server: Postgres = request.getfixturevalue("postgres")
    yield postgres
    for url in made:
        server.drop(url)
