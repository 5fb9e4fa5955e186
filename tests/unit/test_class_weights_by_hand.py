"""A sum that the loop divides by the class weights of its tokens is PyTorch's mean."""

from __future__ import annotations

import dataclasses

import pytest

from gradledger.records import Term
from gradledger_monitor.model.chart_metrics import chart_metrics
from helpers.facts import accused, facts, judged, record, term

WEIGHTS = (8.0, 16.0)


def by_hand(count: int, total: float, divisor: float | None = None, masked: int = 0) -> Term:
    """``(loss of each).sum() / weights[y].sum() / 2``."""
    each = 1 / (divisor or total) / 2
    return dataclasses.replace(
        term(count, each, "none", class_weight=total),
        weight_min=each,
        weight_max=each,
        elements=count,
        valid=count + masked,
        element_weight=each,
        divisors=[2.0, divisor or total],
    )


def test_it_is_judged_like_the_mean() -> None:
    def steps(*terms: Term) -> dict[str, str]:
        return judged([facts(record(list(terms), n)) for n in range(1, 13)]).coverage

    hand = steps(*(by_hand(10, weights) for weights in WEIGHTS))
    mean = steps(*(term(10, 1 / 20, "mean", class_weight=weights) for weights in WEIGHTS))
    rules = [rule for rule in hand if rule.startswith("reduction.")]
    assert {rule: hand[rule] for rule in rules} == {rule: mean[rule] for rule in rules}


def test_other_divisors_leave_it_a_sum_of_tokens() -> None:
    steps = [facts(record([by_hand(10, weights, 10) for weights in WEIGHTS], 1))]
    assert not accused(judged(steps))
    assert "class weights" not in judged(steps).coverage["reduction.token_weights_unequal"]


def test_class_weights_of_masked_tokens_are_none_of_its_mean() -> None:
    def reduction(masked: int) -> str:
        losses = [by_hand(10, weights, masked=masked) for weights in WEIGHTS]
        return facts(record(losses, 1)).objectives[0].terms[0].loss_term.reduction

    assert (reduction(0), reduction(5)) == ("mean", "none")


def test_the_loss_of_a_large_batch_is_the_mean_by_class_weights() -> None:
    sent = record([by_hand(10, weights) for weights in WEIGHTS])
    for each, loss in zip(sent.micro_batches, (1.0, 4.0), strict=True):
        each.loss = loss / 2
    shown = chart_metrics(facts(sent))["loss_token"]
    assert shown == pytest.approx((8 * 1 + 16 * 4) / 24)
