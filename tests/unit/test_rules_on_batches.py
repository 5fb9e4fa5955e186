"""Courses of the batch and the learning rate: which change is told, and in what."""

from __future__ import annotations

import pytest

from gradledger.records import Term
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term

Window = tuple[int, int, float]  # micro-batches, tokens of each, learning rate


def flat(tokens: int, k: int) -> Term:
    """A loss whose rows may be samples or tokens: nobody knows."""
    return term(tokens, 1 / (tokens * k))


def sequences(tokens: int, k: int) -> Term:
    """One sequence of so many tokens."""
    return term(tokens, 1 / (tokens * k), rows=tokens // 8, size=tokens)


def found(*course: Window, ranks: int = 1, loss: object = flat) -> Finding | None:
    """What is said of a course of windows."""
    make = sequences if loss is sequences else flat
    steps = [
        facts(*[record([make(n, k) for _ in range(k)], i, lr=rate, sync="averaged")] * ranks)
        for i, (k, n, rate) in enumerate(course, 1)
    ]
    findings = judged(steps).findings
    return next((f for f in findings if f.rule == "batch.changed_without_lr"), None)


def changed(before: Window, after: Window, windows: int = 3, ranks: int = 1) -> Finding | None:
    """Three windows of one kind, then some of another."""
    return found(*[before] * 3, *[after] * windows, ranks=ranks)


def test_twice_as_many_micro_batches_that_stay_are_told_with_the_rate_that_did_not() -> None:
    told = changed((2, 64, 0.1), (4, 64, 0.104))
    assert told is not None and told.first_step == 6
    assert told.title == "The effective batch changes by a factor of 2, the learning rate does not"
    assert told.summary == (
        "Micro-batches per step over all ranks went from 2 to 4, while the learning rate went "
        "from 0.1 to 0.104. That is a scaling exponent of 0.057 (1: linear, 0.5: square root)."
    )
    over_ranks = changed((2, 64, 0.1), (4, 64, 0.1), ranks=2)
    assert over_ranks is not None
    assert (over_ranks.evidence["batch_before"], over_ranks.evidence["batch"]) == (4, 8)


def test_where_samples_are_known_they_are_what_is_told() -> None:
    told = found(*[(2, 64, 0.1)] * 3, *[(2, 128, 0.1)] * 3, loss=sequences)
    assert told is not None
    assert told.summary.startswith("Samples per step over all ranks went from 16 to 32, while")


def test_samples_that_are_known_on_one_side_only_are_not_compared() -> None:
    known = [record([sequences(64, 2)] * 2, number) for number in range(1, 4)]
    unknown = [record([flat(64, 4)] * 4, number) for number in range(4, 7)]
    findings = judged([facts(sent) for sent in [*known, *unknown]]).findings
    told = next(f for f in findings if f.rule == "batch.changed_without_lr")
    assert told.summary.startswith("Micro-batches per step over all ranks went from 2 to 4")


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [(2, 3, True), (3, 2, True), (4, 5, False), (5, 4, False), (8, 2, True)],
)
def test_half_as_much_again_is_a_change_and_less_is_none(
    before: int, after: int, is_told: bool
) -> None:
    assert (changed((before, 64, 0.1), (after, 64, 0.1)) is not None) is is_told


def test_as_many_tokens_in_more_micro_batches_are_the_same_batch() -> None:
    assert changed((2, 64, 0.1), (4, 32, 0.1)) is None


def test_a_change_must_hold_for_three_windows() -> None:
    assert changed((2, 64, 0.1), (4, 64, 0.1), windows=2) is None
    wavering = [(4, 64, 0.1), (8, 64, 0.1)] * 3
    assert found(*[(2, 64, 0.1)] * 3, *wavering) is None


@pytest.mark.parametrize(
    ("rate", "is_told"), [(0.2, False), (0.106, False), (0.094, False), (0.096, True)]
)
def test_a_learning_rate_that_moves_along_is_a_choice(rate: float, is_told: bool) -> None:
    assert (changed((2, 64, 0.1), (4, 64, rate)) is not None) is is_told


def test_a_rate_that_was_zero_until_then_has_moved() -> None:
    assert changed((2, 64, 0.0), (4, 64, 0.1)) is None
    assert changed((2, 64, 0.0), (4, 64, 0.0)) is not None
