"""Phases of a training with different losses: the windows of one show nothing of the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gradledger.records import StepRecord, Term
from gradledger_monitor.rules.balance.patterns import Closed, of_same_loss
from helpers.facts import facts, judged, record, term

MSE = "MseLossBackward0"


def means(number: int, factor: float = 1 / 4, undivided: bool = False) -> StepRecord:
    """Four micro-batches of eight rows, each a mean times this factor."""
    one = term(8, factor / 8, undivided=undivided, divisors=[] if undivided else [4.0])
    return record([one] * 4, number)


def errors(number: int, factor: float = 1 / 4, undivided: bool = False) -> StepRecord:
    """The same of a squared error."""
    one = Term(MSE, "mean", 8, weight=factor / 8, size=8, rows=8, positions=1, undivided=undivided)
    return record([one] * 4, number)


def sums(number: int, factor: float = 1.0) -> StepRecord:
    """Sums over the tokens of two micro-batches, divided by their number in the window."""
    counts = (30 + number, 50 - number % 7)
    weight = factor / sum(counts)
    return record([term(count, weight, "sum") for count in counts], number)


Phase = Callable[[int], StepRecord]


def undivided(of: Callable[..., StepRecord]) -> Phase:
    return lambda number: of(number, 1.0, undivided=True)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (means, errors, set()),
        (sums, means, set()),
        (means, undivided(errors), {"reduction.missing_division"}),
        (undivided(errors), means, {"reduction.missing_division"}),
        (sums, undivided(means), {"reduction.missing_division"}),
        (means, undivided(means), {"reduction.missing_division"}),
        (means, lambda number: sums(number, 1 / 2), {"reduction.double_division"}),
    ],
)
def test_a_phase_neither_excuses_nor_accuses_another_one(
    first: Phase, second: Phase, expected: set[str]
) -> None:
    for numbers in (range(1, 7), range(1, 13, 2)):
        steps = [first(n) if n in numbers else second(n) for n in range(1, 13)]
        evaluation = judged([facts(step) for step in steps])
        loud = {finding.rule for finding in evaluation.findings if finding.severity != "info"}
        assert loud - {"batch.changed_without_lr"} == expected


def test_phases_that_differ_in_a_constant_alone_are_separate() -> None:
    """A lazy regularisation, as of StyleGAN, weighs 4 times; no window is divided by K."""
    kind: dict[str, Any] = {"kind": "MeanBackward0", "undivided": True}
    main = [dataclasses.replace(term(8, 1 / 8), coefficient=1.0, **kind)] * 4
    regularisation = [dataclasses.replace(term(8, 4 / 8), coefficient=4.0, **kind)] * 4
    steps = [record(regularisation if n % 4 == 2 else main, n) for n in range(1, 17)]
    (named, information) = judged([facts(step) for step in steps]).findings
    assert (named.rule, named.steps) == ("reduction.missing_division", 12)
    assert (information.severity, information.steps) == ("info", 4)


def test_a_weight_that_contains_the_division_by_k_is_no_missing_division() -> None:
    """The same loop put right: 1/4 in front of the main loss, and 4/4 of the regularisation."""
    kind: dict[str, Any] = {"kind": "MeanBackward0", "undivided": True}
    main = [dataclasses.replace(term(8, 1 / 32), coefficient=0.25, **kind)] * 4
    regularisation = [dataclasses.replace(term(8, 1 / 8), coefficient=1.0, **kind)] * 4
    steps = [record(regularisation if n % 4 == 2 else main, n) for n in range(1, 17)]
    evaluation = judged([facts(step) for step in steps])
    assert evaluation.verdict == "balanced"
    assert {finding.severity for finding in evaluation.findings} == {"info"}


def test_a_constant_that_is_new_in_each_window_separates_none() -> None:
    ramp = facts(record([term(8, 0.3 / 32, coefficient=0.3)] * 4, 3))
    past = [Closed(4, 0.7, 32.0, "pending", coefficient=n / 10) for n in (1, 2)]
    assert of_same_loss(ramp, past) == past
    same = Closed(4, 0.7, 32.0, "pending", coefficient=0.3)
    assert of_same_loss(ramp, [*past, same]) == [same]
