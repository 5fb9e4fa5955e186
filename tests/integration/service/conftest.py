"""Fixtures: one server for the tests that leave no trace on each other, and stores of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gradledger_monitor.store.database import Store
from helpers.service import Service, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A running service; runs in it are kept apart by their ids."""
    with running_service(tmp_path_factory.mktemp("service") / "gradledger.db") as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A migrated database in a file."""
    made = Store(f"sqlite:///{tmp_path / 'gradledger.db'}")
    made.migrate()
    yield made
    made.close()
