"""Micro-batches that may be episodes, or tasks of few examples."""

from __future__ import annotations

from typing import Any

import pytest

from gradledger import records
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import facts, judged, record, term


def _step(number: int, *terms: records.Term) -> StepFacts:
    return facts(record(terms, number))


def _advantages(tokens: int = 8, signed: bool = True, **more: Any) -> records.Term:
    """A mean over 8 elements, divided by 4; without a weight if no token has one."""
    known: dict[str, Any] = {"size": 8, "elements": 8, "element_weight": 1 / 32, "valid": 8}
    if tokens:
        known |= {"weight_min": 0.01, "weight_max": 0.05}
        known |= {"weight_size": 0.03} if signed else {}
    return term(tokens, 0.01 if signed else 0.03, "none", **(known | more))


@pytest.mark.parametrize(
    ("rest", "is_named"),
    [
        (_advantages(0), False),
        (_advantages(0, valid=0), True),  # all targets are ignored
        (_advantages(0, element_weight=1 / 8), True),  # of another divisor
    ],
)
def test_micro_batches_with_advantages_of_zero_are_not_without_tokens(
    rest: records.Term, is_named: bool
) -> None:
    steps = [_step(n, *[_advantages()] * 3, rest) for n in range(1, 4)]
    titles = [f.title for f in judged(steps).findings if f.rule == "reduction.balance_off"]
    assert any("no tokens with a weight" in title for title in titles) == is_named


def _task(classes: int, shots: int = 5, **more: Any) -> records.Term:
    n = classes * shots
    return term(n, 1 / (2 * n), **{"samples": n, "classes": classes, **more})


@pytest.mark.parametrize(
    ("terms", "is_named"),
    [
        ((_task(3), _task(7)), False),
        ((_task(3, samples=5), _task(7, samples=5)), True),  # sequences, and their positions
        ((_task(3, shots=1), _task(7, shots=1)), True),  # a class for each sample
        ((_task(5, shots=3), _task(5, shots=7)), True),  # a classifier
    ],
)
def test_tasks_of_few_examples_may_count_once(
    terms: tuple[records.Term, ...], is_named: bool
) -> None:
    evaluation = judged([_step(n, *terms) for n in range(1, 4)])
    rules = {f.rule for f in evaluation.findings}
    assert ("reduction.token_weights_unequal" in rules) == is_named
    assert (evaluation.verdict == "incomplete") != is_named


def test_one_short_batch_whose_rows_are_the_classes_is_no_task() -> None:
    """In-batch softmax with two queries for each passage; tasks have other sizes each time."""
    batches = [_step(n, *[_of_three(16), _of_three(16), _of_three(4)]) for n in range(1, 6)]
    rules = {f.rule for f in judged(batches).findings}
    assert "reduction.token_weights_unequal" in rules
    sizes = [(4, 5, 7), (5, 5, 3), (6, 3, 4), (7, 7, 5), (3, 5, 6)]
    tasks = [_step(n, *map(_of_three, each)) for n, each in enumerate(sizes, 1)]
    assert judged(tasks).findings == []


def _of_three(classes: int) -> records.Term:
    n = 2 * classes
    return term(n, 1 / (3 * n), samples=n, classes=classes)
