"""Losses of several models or heads that each micro-batch adds up, as an ensemble by vmap does."""

from __future__ import annotations

import pytest

from gradledger.records import StepRecord
from helpers.facts import facts, judged, record, term

TOKENS = 6  # of each model


def step(
    number: int, models: int, micro_batches: int, *divisors: float, written: bool = True
) -> StepRecord:
    """A step whose micro-batches each add up the means of several models, divided by numbers.

    The count of each mean is ``written`` as one of these numbers, or is that of a reduction.
    """
    weight = 1.0
    for divisor in divisors:
        weight /= divisor
    one = term(
        models * TOKENS,
        weight / TOKENS,
        "none",
        elements=models,
        element_weight=weight,
        divisors=(*divisors, float(TOKENS)) if written else divisors,
        weight_min=weight / TOKENS,
        weight_max=weight / TOKENS,
    )
    return record([one] * micro_batches, number)


def test_models_beside_a_division_by_k_are_a_factor_and_no_mistake() -> None:
    evaluation = judged([facts(step(n, 4, 3, 3.0)) for n in range(1, 7)])
    (finding,) = evaluation.findings
    assert finding.rule == "reduction.balance_off"
    assert finding.severity == "info"
    assert "adds up 4 means, and each of them has a balance of 1" in finding.summary


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(
    ("divisors", "reason"),
    [
        pytest.param((3.0,), "as many means as the window has micro-batches", id="by one number"),
        pytest.param((), "nothing divides them", id="by none"),
    ],
)
def test_as_many_models_as_micro_batches_are_not_evaluated(
    divisors: tuple[float, ...], reason: str, written: bool
) -> None:
    windows = [facts(step(n, 3, 3, *divisors, written=written)) for n in range(1, 7)]
    evaluation = judged(windows)
    assert not evaluation.findings
    assert evaluation.verdict == "incomplete"
    assert reason in evaluation.coverage["reduction.missing_division"]


def test_windows_of_another_k_show_that_models_are_a_factor() -> None:
    windows = [facts(step(n, 3, k, float(k))) for n, k in enumerate((2, 2, 3, 3), 1)]
    evaluation = judged(windows)
    assert {finding.rule for finding in evaluation.findings} == {"reduction.balance_off"}


def test_the_declared_number_of_models_is_balanced() -> None:
    evaluation = judged([facts(step(n, 3, 3, 3.0), declared_scale=3.0) for n in range(1, 7)])
    assert not evaluation.findings
    assert evaluation.verdict == "balanced"


def of_classes(number: int, weight: float, *divisors: float, classes: int = 4) -> StepRecord:
    """A step of four micro-batches, each with a loss by class on one head, as Lovasz has them."""
    losses = []
    for index in range(1, classes + 1):
        loss = term(1, weight, "none", size=None, rows=None, divisors=divisors, module="head")
        loss.kind, loss.nonlinear = "DotBackward0", True
        loss.function, loss.function_weight = index, weight
        loss.weight_min = loss.weight_max = weight
        losses.append(loss)
    return record([losses] * 4, number)


def test_one_number_may_be_that_of_the_classes_or_k() -> None:
    evaluation = judged([facts(of_classes(n, 1 / 4, 4.0)) for n in range(1, 5)])
    assert (evaluation.findings, evaluation.verdict) == ([], "incomplete")
    assert "divides as many losses" in evaluation.coverage["reduction.missing_division"]
    declared = [facts(of_classes(n, 1 / 4, 4.0), declared_scale=1.0) for n in range(1, 5)]
    assert judged(declared).verdict == "balanced"


def test_the_classes_and_k_divide_a_right_loss() -> None:
    evaluation = judged([facts(of_classes(n, 1 / 16, 4.0, 4.0)) for n in range(1, 5)])
    assert (evaluation.findings, evaluation.verdict) == ([], "balanced")


def test_a_bare_sum_that_nothing_divides_is_not_evaluated() -> None:
    """Such as the squared errors of a matrix of correlations: each micro-batch has six."""

    def of(number: int, divisor: float) -> StepRecord:
        sums = term(6, 1 / divisor, "sum", undivided=divisor == 1, elements=6)
        sums.kind, sums.element_weight = "SumBackward0", 1 / divisor
        sums.divisors = [] if divisor == 1 else [divisor]
        return record([sums] * 4, number)

    undivided = judged([facts(of(n, 1.0)) for n in range(1, 6)])
    assert (undivided.findings, undivided.verdict) == ([], "incomplete")
    assert "nothing divides it" in undivided.coverage["reduction.missing_division"]
    divided = judged([facts(of(n, 4.0)) for n in range(1, 6)])
    assert [finding.severity for finding in divided.findings] == ["info"]


def test_a_division_by_one_divides_no_mean_of_weighted_sums() -> None:
    """RLOO under a divisor of 1: four answers of each micro-batch, with rewards of both signs."""

    def of(number: int) -> StepRecord:
        terms = []
        for tokens in (29, 13, 22, 16):
            loss = term(tokens, -0.02, "none", size=tokens + 3, rows=None, elements=4)
            loss.kind, loss.element_weight = "GatherBackward0", -0.25
            loss.weight_min, loss.weight_max, loss.weight_size = 0.1, 0.4, 0.3
            terms.append(loss)
        return record(terms, number)

    (finding,) = judged([facts(of(n)) for n in range(1, 5)]).findings
    assert (finding.rule, finding.severity) == ("reduction.missing_division", "warning")


@pytest.mark.parametrize(("micro_batches", "verdict"), [(1, "balanced"), (2, "incomplete")])
def test_a_learned_weight_of_one_mean_in_a_window_is_a_factor(
    micro_batches: int, verdict: str
) -> None:
    """``exp(-s) * loss + s``; in several micro-batches it may lack a division by K."""

    def of(number: int) -> StepRecord:
        loss = term(10, (1 + number / 50) / 10, undivided=True, nonlinear=True)
        return record([loss] * micro_batches, number)

    evaluation = judged([facts(of(n)) for n in range(1, 6)])
    assert (evaluation.findings, evaluation.verdict) == ([], verdict)


def test_a_weighted_sum_over_samples_is_divided_by_them() -> None:
    """Squared errors of five samples of twelve entries, weighted by their noise."""

    def of(number: int, divisor: float, **signs: float) -> StepRecord:
        sums = term(60, 3 / divisor, "none", size=60, rows=5, elements=60, divisors=(divisor,))
        sums.kind, sums.element_weight = "SumBackward0", 1 / divisor
        sums.weight_min, sums.weight_max = 0.5 / divisor, 9 / divisor
        sums.weight_size = signs.get("size")
        return record([sums] * 4, number)

    right = judged([facts(of(n, 20.0)) for n in range(1, 6)])
    assert (right.findings, right.verdict) == ([], "balanced")
    without_k = judged([facts(of(n, 5.0)) for n in range(1, 6)])
    assert [finding.rule for finding in without_k.findings] == ["reduction.missing_division"]
    of_both_signs = judged([facts(of(n, 20.0, size=3 / 20)) for n in range(1, 6)])
    assert of_both_signs.verdict == "incomplete"  # may be products with cached gradients


def test_samples_of_a_weighted_sum_that_micro_batches_divide_by_their_own() -> None:
    """By hand: each micro-batch has 1/4, so that 2 of 20 samples have 1/4 instead of 1/10."""

    def of(number: int) -> StepRecord:
        batches = []
        for rows, inner in ((2, 5.0), (5, 1.0), (7, 2.0), (6, 3.0)):
            each, size = 1 / (4 * rows), 12 * rows
            sums = term(size, inner * each, "none", size=size, rows=rows, elements=size)
            sums.kind, sums.element_weight, sums.divisors = "SumBackward0", each, [4.0, rows]
            sums.weight_min, sums.weight_max = 0.1 * each, 9 * each
            batches.append([sums])
        return record(batches, number)

    (unequal,) = judged([facts(of(n)) for n in range(1, 6)]).findings
    assert unequal.rule == "reduction.token_weights_unequal"
    assert unequal.evidence["misallocation"] == pytest.approx(0.15)
    assert unequal.evidence["relative_weights"] == pytest.approx([2.5, 1.0, 5 / 7, 5 / 6], rel=1e-3)
