"""The server that plays scripts, one for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from museum.stage import Stage


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """It imports torch and the checks at its start."""
    one = Stage(["museum.fixes.proof"])
    yield one
    one.close()
