"""Fixtures: servers and stores, each on the embedded database and on Postgres."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradledger_monitor.store.database import Store
from helpers.postgres import Postgres, running_postgres
from helpers.service import Service, running_service

Databases = Callable[[], str]  # the URL of a new, empty database


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


@pytest.fixture
def database(databases: Databases) -> str:
    """The URL of one."""
    return databases()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all tables and no row; to copy it is faster than to migrate once more."""
    file = tmp_path_factory.mktemp("migrated") / "empty.db"
    made = Store(f"sqlite:///{file}")
    made.migrate()
    made.close()
    return file


@pytest.fixture
def store(database: str, migrated: Path) -> Iterator[Store]:
    """A migrated database."""
    if database.startswith("sqlite:///"):
        shutil.copyfile(migrated, database.removeprefix("sqlite:///"))
    made = Store(database)
    made.migrate()
    yield made
    made.close()


@pytest.fixture(scope="module")
def service(
    backend: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Service]:
    """A running service; runs in it are kept apart by their ids."""
    folder = tmp_path_factory.mktemp("service")
    with _databases(backend, folder, request) as make, running_service(make()) as running:
        yield running


@contextmanager
def _databases(backend: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Databases]:
    if backend == "sqlite":
        numbers = itertools.count()
        yield lambda: f"sqlite:///{folder / f'{next(numbers)}.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    made: list[str] = []

    def make() -> str:
        made.append(server.create())
        return made[-1]

    yield make
    for url in made:
        server.drop(url)
