"""Two ranks that are not plain DDP: all-reduced by hand, a comm hook of one's own, FSDP."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gradledger_monitor.model.step_facts import StepFacts
from helpers.pytorch import FSDP2_ON_A_CPU, since
from helpers.ranks import play
from helpers.training import accused, facts_of, judged, steps_of

RANKS, STEPS = 2, 4
UNEQUAL = "reduction.token_weights_unequal"
COSTS = {"hsdp": {"ddp.missing_no_sync": 2}}  # it reduces each time, which FSDP may mean

FSDP2, HSDP = (
    pytest.param(name, marks=since(FSDP2_ON_A_CPU, "FSDP2 fails or adds gradients up with gloo"))
    for name in ("fsdp2", "hsdp")
)

RankResults = dict[tuple[str, bool], dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[RankResults]:
    """The output of each rank of parallel_ranks.py."""
    return play(Path(__file__).parent / "parallel_ranks.py", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        *("by_hand", "parameter_hooks", "hooks_each_time", "hooks_too_early"),
        *("comm_hook", FSDP2, HSDP, "fsdp1"),
    ],
)
def test_training_ends_in_the_same_bits(ranks: list[RankResults], name: str, right: bool) -> None:
    for results in ranks:
        loop = results[name, right]
        assert len(steps_of(loop["lines"])) == STEPS
        watched, alone = loop["watched"], loop["alone"]
        assert watched["returned"] == alone["returned"]
        for ours, theirs in zip(watched["parameters"], alone["parameters"], strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", [FSDP2, HSDP, "fsdp1"])
def test_sharded_ranks_are_evaluated(ranks: list[RankResults], name: str) -> None:
    costs = COSTS.get(name, {})
    assert _answer(ranks, name, True) == (costs, "balanced")
    assert _answer(ranks, name, False) == ({UNEQUAL: 1, **costs}, "broken")


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("name", ["by_hand", "comm_hook"])
def test_there_is_no_false_finding_where_the_combining_is_not_observed(
    ranks: list[RankResults], name: str, right: bool
) -> None:
    rules, verdict = _answer(ranks, name, right)
    assert (rules, verdict) in (
        ({}, "incomplete"),
        ({}, "balanced") if right else ({UNEQUAL: 1}, "broken"),
    )


def test_an_all_reduce_in_hooks_of_the_parameters_is_evaluated(ranks: list[RankResults]) -> None:
    assert _answer(ranks, "parameter_hooks", True) == ({}, "balanced")
    assert _answer(ranks, "parameter_hooks", False)[0].keys() == {UNEQUAL}


def test_hooks_that_combine_too_often_or_too_early_are_named(ranks: list[RankResults]) -> None:
    too_often, verdict = _answer(ranks, "hooks_each_time", True)
    assert (too_often, verdict) == ({"ddp.missing_no_sync": 2}, "balanced")
    too_early = _answer(ranks, "hooks_too_early", True)[0]
    assert too_early.keys() >= {"ddp.wrong_microbatch_synced"}
    assert "ddp.missing_no_sync" not in too_early


@pytest.mark.parametrize("name", ["comm_hook", FSDP2, HSDP, "fsdp1"])
def test_the_norm_is_the_whole_gradients_however_it_is_kept(
    ranks: list[RankResults], name: str
) -> None:
    """All loops begin with the same weights and data."""
    norm = {n: _facts(ranks, n, True)[0].norm for n in ("by_hand", name)}
    limit = 0.3 if name == "fsdp2" else math.inf
    assert norm[name] == pytest.approx(min(norm["by_hand"] or math.nan, limit), rel=1e-4)


def _facts(ranks: list[RankResults], name: str, right: bool) -> list[StepFacts]:
    return facts_of([steps_of(results[name, right]["lines"]) for results in ranks])


def _answer(ranks: list[RankResults], name: str, right: bool) -> tuple[dict[str, int], str]:
    evaluation = judged(_facts(ranks, name, right))
    return accused(evaluation), evaluation.verdict


def test_the_users_own_comm_hook_keeps_working(ranks: list[RankResults]) -> None:
    for results in ranks:
        assert results["comm_hook", True]["watched"]["returned"] >= STEPS
