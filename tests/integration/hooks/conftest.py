"""Two ranks, started once for the tests that read their output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.ranks import play

Ranks = list[dict[str, Any]]  # the output of each rank of two_ranks.py


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """The rows of two_ranks.py."""
    return play(Path(__file__).parent / "two_ranks.py", tmp_path_factory.mktemp("ranks"))
