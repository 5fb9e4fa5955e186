"""Pipelines of two ranks: the hooks change nothing, and the stage with the loss is judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradledger.torch_version import at_least
from helpers.ranks import play
from helpers.training import accused, facts_of, judged, steps_of

from .conftest import Ranks
from .pipelines import SCHEDULES, WINDOWS

# Without the hooks, too: 2.6 has no scale_grads, and gloo of 2.10 loses its connection.
pytestmark = pytest.mark.skipif(not at_least((2, 11)), reason="pipelines of an older PyTorch")


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """The rows of pipelines.py."""
    return play(Path(__file__).parent / "pipelines.py", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", SCHEDULES)
def test_weights_are_the_same_to_the_last_bit(pipelines: Ranks, name: str) -> None:
    for rank in pipelines:
        for watched in ("watched", "in part"):
            assert all(map(torch.equal, rank[name][watched], rank[name]["alone"]))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_scaling_of_the_schedule_is_seen(pipelines: Ranks, name: str) -> None:
    for lines, balance in (("lines", 1 / 4), ("right", 1)):
        steps = facts_of([steps_of(rank[name][lines]) for rank in pipelines])
        assert [fact.step for fact in steps] == list(range(1, WINDOWS + 1))
        for fact in steps:
            assert (fact.micro_batches, fact.unmeasured) == (4, None)
            assert fact.ledger is not None
            assert fact.ledger.balance == pytest.approx(balance, rel=1e-3)
            assert fact.ledger.misallocation == pytest.approx(0, abs=1e-3)
        named = accused(judged(steps))
        assert list(named) == (["reduction.double_division"] if balance < 1 else [])


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_norm_is_that_of_all_stages(pipelines: Ranks, name: str) -> None:
    ranks = [steps_of(rank[name]["right"]) for rank in pipelines]
    for fact, *records in zip(facts_of(ranks), *ranks, strict=True):
        assert fact.norm == pytest.approx(sum(float(r.norm or 0) ** 2 for r in records) ** 0.5)
