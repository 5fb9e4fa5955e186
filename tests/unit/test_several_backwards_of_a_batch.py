"""Backwards of one batch with different weights: of its views, or in adversarial training."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradledger_monitor.model.findings import EvaluationResult
from helpers.facts import facts, judged, record, term

CHUNKS = ([0.15, 0.35], [0.25, 0.25])  # weights in two micro-batches


def evaluation(weights: Sequence[float], data: Sequence[float | None]) -> EvaluationResult:
    """The evaluation of windows of means over 8 tokens with these weights, on these batches."""
    steps = []
    for number in range(1, 4):
        sent = record([term(8, weight / 8) for weight in weights], number)
        for micro_batch, of_batch in zip(sent.micro_batches, data, strict=True):
            micro_batch.fingerprint = None if of_batch is None else of_batch + number
        steps.append(facts(sent))
    return judged(steps)


@pytest.mark.parametrize(
    ("weights", "data", "found", "verdict"),
    [
        ([1 / 2, 1 / 6, 1 / 6, 1 / 6], [0.1] * 4, "not_applicable", "balanced"),
        ([1 / 3, 1 / 6, 1 / 3, 1 / 6], [0.1, 0.1, 0.2, 0.2], "not_applicable", "balanced"),
        ([1.0, 1.0, 1.0, 0.5], [0.1] * 4, "not_measured", "incomplete"),  # an attack may leak
        ([1 / 2, 1 / 6, 1 / 6, 1 / 6], [0.1, 0.2, 0.3, 0.4], "finding", "broken"),
        ([1 / 2, 1 / 6, 1 / 6, 1 / 6], [None] * 4, "finding", "broken"),
        ([1 / 2, 1 / 6, 1 / 6, 1 / 6], [0.1, 0.1, 0.2, 0.3], "finding", "broken"),
    ],
)
def test_batches_of_equal_weight_in_sum_are_no_finding(
    weights: list[float], data: list[float | None], found: str, verdict: str
) -> None:
    result = evaluation(weights, data)
    assert result.coverage["reduction.token_weights_unequal"].startswith(found)
    assert result.verdict == verdict


def test_the_chunks_of_a_micro_batch_are_no_further_backwards() -> None:
    """Two batches have the same weight in sum, and the tokens of a chunk have another one."""
    steps = []
    for number in range(1, 4):
        chunks = [[term(8, weight / 8, head=1) for weight in pair] for pair in CHUNKS]
        sent = record(chunks, number)
        sent.micro_batches[0].fingerprint, sent.micro_batches[1].fingerprint = number, number + 0.5
        steps.append(facts(sent))
    result = judged(steps)
    assert result.coverage["reduction.token_weights_unequal"] == "finding"
    assert result.verdict == "broken"
