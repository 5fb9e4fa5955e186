"""A divisor whose unit is not known, and the count that it follows from window to window."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from gradledger import records
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import accused, facts, judged, record, term

WINDOWS = [(7, 4, 1), (2, 9, 3), (5, 5, 8), (12, 1, 1), (3, 6, 2), (4, 4, 11), (9, 2, 7), (1, 3, 6)]
WRONG = "reduction.wrong_denominator"


def detector(boxes: Sequence[int], divisor: float, step: int) -> StepFacts:
    """A loss over a grid of 64 cells, and one of four numbers of each box, with one divisor."""

    def losses(count: int) -> list[records.Term]:
        kind = "BinaryCrossEntropyWithLogitsBackward0"
        cells = term(64, 1 / divisor, "sum", kind=kind, of=kind)
        numbers = term(4 * count, 2 / divisor, "sum", kind="SumBackward0", positions=count)
        return [cells, numbers]

    return facts(record([losses(count) for count in boxes], step))


def first(index: int) -> float:
    return 3 * WINDOWS[index][0]


def last(index: int) -> float:
    return 3 * WINDOWS[index][-1]


def before(index: int) -> float:
    return sum(WINDOWS[index - 1]) if index else 20


def whole(index: int) -> float:
    return sum(WINDOWS[index])


def other(index: int) -> float:
    return 17 + index**2


def trained(divisor: Any, windows: int = len(WINDOWS)) -> list[StepFacts]:
    return [detector(WINDOWS[i], divisor(i), i + 1) for i in range(windows)]


@pytest.mark.parametrize(
    ("divisor", "step", "words"),
    [
        (first, 1, "of positions of the sum in the first micro-batch alone: 3 times 1, where"),
        (last, 1, "of positions of the sum in the last micro-batch alone: 3 times 6, where"),
        (before, 7, "of positions of the sum in the window before: 18, where this window has 10."),
    ],
)
def test_a_divisor_that_follows_other_data_is_named(divisor: Any, step: int, words: str) -> None:
    result = judged(trained(divisor))
    (finding,) = result.findings
    assert (finding.rule, finding.severity, finding.first_step) == (WRONG, "warning", step)
    assert words in finding.summary
    assert finding.evidence["part"] == divisor.__name__.replace("before", "previous")


def test_what_the_divisor_would_be_is_computed_from_both_counts() -> None:
    finding = judged(trained(before)).findings[0]
    assert (finding.evidence["divisor"], finding.evidence["counted"]) == (18, 10)
    assert "the gradient of this one would be 1.8 times as large" in finding.summary


def test_a_loss_that_is_divided_by_the_boxes_of_the_window_is_balanced() -> None:
    result = judged(trained(whole))
    assert (accused(result), result.verdict) == ({}, "balanced")


def test_a_divisor_that_follows_no_count_is_not_measured() -> None:
    result = judged(trained(other))
    assert not result.findings
    assert "not the count of the elements in its graph" in result.coverage[WRONG]


def test_five_windows_show_nothing_yet() -> None:
    result = judged(trained(first, 5))
    assert not result.findings and result.coverage[WRONG].startswith("not_measured")


def test_counts_that_hardly_vary_show_nothing() -> None:
    """Two different counts fit by chance."""
    steps = [detector(WINDOWS[i % 2], first(i % 2), i + 1) for i in range(8)]
    assert not judged(steps).findings


# ---------------------------------------------------------------------- CTC, by letter


def speech(letters: Sequence[tuple[int, int]], weights: Sequence[float], step: int) -> StepFacts:
    """Utterances and their letters of each micro-batch, and the weight of an utterance's loss."""
    terms = [
        dataclasses.replace(
            term(utterances, weight, "none", positions=count),
            kind="CtcLossBackward0",
            size=None,
            rows=None,
        )
        for (utterances, count), weight in zip(letters, weights, strict=True)
    ]
    return facts(record(terms, step))


LETTERS = [[(2, 9), (3, 8)], [(4, 22), (2, 5)], [(3, 13), (2, 14)]]


def spoken(weight: Any) -> list[StepFacts]:
    """``weight`` of an utterance, from the letters of the micro-batch, and all of the window."""
    return [
        speech(window, [weight(micro_batch, window) for micro_batch in window], step)
        for step, window in enumerate(LETTERS, 1)
    ]


def test_a_sum_over_the_letters_of_the_window_is_balanced() -> None:
    result = judged(spoken(lambda _, window: 1 / sum(count for _, count in window)))
    assert (accused(result), result.verdict) == ({}, "balanced")


def test_a_sum_over_the_utterances_of_the_window_is_balanced() -> None:
    result = judged(spoken(lambda _, window: 1 / sum(count for count, _ in window)))
    assert (accused(result), result.verdict) == ({}, "balanced")


def test_a_mean_over_the_letters_of_each_micro_batch_is_read_in_letters() -> None:
    result = judged(spoken(lambda micro_batch, _: 1 / micro_batch[1] / 2))
    (finding,) = result.findings
    assert finding.rule == "reduction.token_weights_unequal"
    assert finding.evidence["tokens"] == [13, 14]
    assert "mean over all tokens" not in finding.summary  # that of the utterances


def test_a_mean_over_letters_that_nothing_divides_is_off_by_k() -> None:
    found = accused(judged(spoken(lambda micro_batch, _: 1 / micro_batch[1])))
    assert set(found) == {"reduction.token_weights_unequal", "reduction.missing_division"}
