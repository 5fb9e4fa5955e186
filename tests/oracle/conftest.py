"""The server that plays programs, one for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from museum.stage import Stage
from oracle.run import IMPORTED


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """It imports at its start what programs and their truth need."""
    started = Stage(IMPORTED)
    yield started
    started.close()
