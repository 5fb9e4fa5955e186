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
