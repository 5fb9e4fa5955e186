"""DeepSpeed's engine, nothing added to the script: ZeRO at every stage, on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gradledger_monitor.model.chart_metrics import chart_metrics
from gradledger_monitor.model.step_facts import StepFacts
from helpers.ranks import play
from helpers.training import (
    Truth,
    accused,
    assert_ledger_is_true,
    facts_of,
    judged,
    steps_of,
    tiny_model,
    token_gradients,
)

RATE = 0.5
STAGES, SHARDED = (0, 1, 2, 3), (1, 2, 3)
UNEQUAL = "reduction.token_weights_unequal"

RankResults = dict[tuple[int, bool], dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[RankResults]:
    """What each rank of deepspeed_ranks.py wrote."""
    return play(Path(__file__).parent / "deepspeed_ranks.py", tmp_path_factory.mktemp("ranks"))


def facts(ranks: list[RankResults], stage: int, right: bool) -> list[StepFacts]:
    """One way's steps, the ranks merged."""
    return facts_of([steps_of(rank[stage, right]["lines"]) for rank in ranks])


def truth(ranks: list[RankResults], stage: int, right: bool, index: int) -> Truth:
    """The weights of all tokens of both ranks, from how the engine moved the parameters."""
    way = ranks[0][stage, right]
    before, after = way["alone"][index : index + 2]
    applied = torch.cat([(before[n] - after[n]).flatten() / RATE for n in before])
    batches = [batch for rank in ranks for batch in rank[stage, right]["windows"][index]]
    return Truth.solve(*token_gradients(tiny_model(), before, batches), applied)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_training_ends_in_the_same_bits(ranks: list[RankResults], stage: int, right: bool) -> None:
    for rank in ranks:
        way = rank[stage, right]
        for ours, theirs in zip(way["watched"], way["alone"], strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("stage", STAGES)
def test_the_mean_of_means_is_named(ranks: list[RankResults], stage: int) -> None:
    evaluation = judged(facts(ranks, stage, False))
    assert (accused(evaluation), evaluation.verdict) == ({UNEQUAL: 1}, "broken")


def test_without_zero_everything_is_measured(ranks: list[RankResults]) -> None:
    steps = facts(ranks, 0, True)
    for index, step in enumerate(steps):
        assert_ledger_is_true(step, truth(ranks, 0, True, index))
    evaluation = judged(steps)
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("stage", SHARDED)
def test_under_zero_the_relative_weights_are_those_that_the_engine_applied(
    ranks: list[RankResults], stage: int, right: bool
) -> None:
    for index, step in enumerate(facts(ranks, stage, right)):
        expected, ledger = truth(ranks, stage, right, index), step.ledger
        assert ledger is not None, step.unmeasured
        assert ledger.tokens == len(expected.losses)
        assert ledger.misallocation == pytest.approx(expected.misallocation, abs=1e-3)
        relative = [w for e in ledger.entries for w in [e.relative] * round(e.tokens)]
        weights = torch.tensor(relative, dtype=torch.double) * expected.balance / ledger.tokens
        assert expected.rebuilt_by(weights) < 1e-3
        assert step.norm == pytest.approx(float(expected.applied.norm()), rel=1e-3)


@pytest.mark.parametrize("right", [True, False])
def test_under_zero_1_everything_is_measured_on_a_cpu(
    ranks: list[RankResults], right: bool
) -> None:
    """The optimizer's flat buffers are recognised by their values."""
    steps = facts(ranks, 1, right)
    for index, step in enumerate(steps):
        assert_ledger_is_true(step, truth(ranks, 1, right, index))
    assert judged(steps).verdict == ("balanced" if right else "broken")


@pytest.mark.parametrize("stage", (2, 3))
def test_under_zero_the_gradient_size_is_not_measured_and_the_reason_is_recorded(
    ranks: list[RankResults], stage: int
) -> None:
    steps = facts(ranks, stage, True)
    assert {chart_metrics(s)["balance"] for s in steps} == {None}
    evaluation = judged(steps)
    assert (accused(evaluation), evaluation.verdict) == ({}, "incomplete")
    (reduction,) = [node for node in evaluation.tree if node.node == "reduction"]
    assert "the optimizer steps on its own buffers" in reduction.reason
