"""Two ranks, started once for the tests that read their output; a count of searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gradledger.capture.layers import parameter_names
from helpers.ranks import play

Ranks = list[dict[str, Any]]  # the output of each rank of two_ranks.py


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """The rows of two_ranks.py."""
    return play(Path(__file__).parent / "two_ranks.py", tmp_path_factory.mktemp("ranks"))


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each search through the objects of the process."""
    counted: list[int] = []
    search = parameter_names._modules_alive

    def counting() -> list[nn.Module]:
        counted.append(1)
        return search()

    monkeypatch.setattr(parameter_names, "_modules_alive", counting)
    monkeypatch.setattr(parameter_names, "_references", [])
    return counted
