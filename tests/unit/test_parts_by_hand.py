"""Ranks that hold parts of one model, with all-reduces in autograd functions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradledger.records import MicroBatch, Samples, StepRecord
from gradledger_monitor.model.ranks.held_in_parts import ADDED_UP, OF_ONE_BATCH
from gradledger_monitor.model.ranks.parts_by_hand import scales_of_parts
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import accused, facts, judged, record, term


def batch(loss: float, tokens: int, sums: list[float], weight: float, **more: Any) -> MicroBatch:
    sent: dict[str, Any] = {"fingerprint": loss * 7, "collectives": len(sums), **more}
    return MicroBatch(loss=loss, terms=[term(tokens, weight)], sums=sums, **sent)


def rank(
    index: int, weights: Any = (1 / 30, 1 / 30), sums: Any = (0.0,), **more: Any
) -> StepRecord:
    """Of two micro-batches with 10 and 20 tokens; the same on all ranks."""
    of_batches: dict[str, Any] = more.pop("of_batches", {})
    scales: list[float] = more.pop("scales", [])
    sent = record([term(10, 1.0)], **{"sync": "unknown", "norm": 1.0 + index, **more})
    sent.micro_batches = [
        batch(1.5, 10, list(sums), weights[0], fresh=True, **of_batches),
        batch(2.5, 20, list(sums), weights[1], fresh=False, **of_batches),
    ]
    sent.micro_batches[0].sum_scales = scales
    sent.micro_batches[1].sums = []  # those of the first backward of a window are sampled
    return sent


def two(**more: Any) -> StepFacts:
    return facts(*(rank(index, **more) for index in range(2)))


def test_ranks_that_hold_parts_are_one_member() -> None:
    one = two()
    assert one.ledger is not None
    assert (one.ledger.tokens, one.ledger.balance) == pytest.approx((30, 1))
    assert one.run.world_size == 1
    assert accused(judged([one])) == {}


def test_a_mean_of_means_of_parts_is_named() -> None:
    assert accused(judged([two(weights=(1 / 20, 1 / 40))])) == {
        "reduction.token_weights_unequal": 1
    }


def test_losses_that_hide_their_targets_are_compared_alone() -> None:
    assert two(of_batches={"fingerprint": None}).ledger is not None


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"sums": [0.0, 2.0]}, id="equal values are added up"),
        pytest.param({"sums": [0.0, math.nan]}, id="too few values show it"),
        pytest.param({"sums": [], "of_batches": {"collectives": 1}}, id="not sampled"),
        pytest.param({"of_batches": {"collectives": 2}}, id="another collective"),
        pytest.param({"collectives_after": 4, "post_factor": None}, id="combined later"),
    ],
)
def test_what_may_multiply_gradients_leaves_it_open(more: dict[str, Any]) -> None:
    left_open = two(**more)
    assert left_open.all_reduce is not None
    assert left_open.factor_unmeasured == left_open.all_reduce.reason
    assert judged([left_open]).verdict == "incomplete"


@pytest.mark.parametrize("fingerprint", [10.0, None])
def test_a_mean_of_means_shows_where_the_factor_of_the_ranks_does_not(
    fingerprint: float | None,
) -> None:
    of_batches = {"collectives": 2, "fingerprint": fingerprint}
    left_open = two(weights=(1 / 20, 1 / 40), of_batches=of_batches)
    named = accused(judged([left_open]))
    # without fingerprints, the ranks may have other tokens
    assert named == ({"reduction.token_weights_unequal": 1} if fingerprint else {})


def test_other_losses_are_those_of_other_data() -> None:
    records = [rank(index) for index in range(2)]
    records[1].micro_batches[0].loss = 1.25
    assert facts(*records).ledger is None


def test_an_average_of_equal_values_leaves_them_as_they_are() -> None:
    assert two(sums=[0.0, 1.0]).ledger is not None


@pytest.mark.parametrize("scale", [0.5, 2.0, 0.25])
def test_a_sum_of_parts_that_is_multiplied_by_a_number_of_ranks_may_be_right(scale: float) -> None:
    one = two(sums=[0.0, 0.0], scales=[1.0, scale])
    evaluation = judged([one])
    assert (accused(evaluation), evaluation.verdict) == ({}, "incomplete")
    assert f"a sum over the ranks by {scale:g}" in evaluation.coverage["reduction.world_size"]


@pytest.mark.parametrize("scale", [1.0, 0.9, math.nan])
def test_any_other_factor_on_a_sum_may_be_intended(scale: float) -> None:
    assert accused(judged([two(scales=[scale])])) == {}


def test_a_factor_on_equal_values_is_none_on_a_sum_of_parts() -> None:
    assert scales_of_parts(two(sums=[0.0, 1.0], scales=[1.0, 0.5]).record) == []


def test_the_records_of_all_parts_are_compared() -> None:
    assert sorted(two().run.parts) == [0, 1]


def test_a_gradient_that_is_added_up_is_named_as_the_reason() -> None:
    assert two(sums=[2.0], before_hooks=False).factor_unmeasured == ADDED_UP.format(2)


@pytest.mark.parametrize("factor", [1.7, math.nan])
def test_any_other_factor_is_no_number_of_ranks(factor: float) -> None:
    assert two(sums=[factor], before_hooks=False).factor_unmeasured == OF_ONE_BATCH


@pytest.mark.parametrize(("factor", "balance"), [(0.5, 0.5), (1.0, 1.0)])
def test_peers_of_several_groups_combine_their_gradients(factor: float, balance: float) -> None:
    own = ([1.0, 2.0, 3.0, -1.0], [4.0, 1.0, 0.5, 2.0])  # of the two groups
    applied = [factor * (a + b) for a, b in zip(*own, strict=True)]
    records = []
    for index in range(4):
        samples = Samples(list(own[index // 2]), applied)
        sent = rank(index, (1 / 60, 1 / 60), post_factor=None, samples=samples, changed=True)
        sent.before_hooks, sent.own_sums, sent.collectives_after = True, True, 4
        for each in sent.micro_batches:
            each.loss = (each.loss or 0.0) + index // 2
            each.fingerprint = each.loss
        records.append(sent)
    one = facts(*records)
    assert one.ledger is not None
    assert (one.ledger.tokens, one.ledger.balance) == pytest.approx((60, balance))
