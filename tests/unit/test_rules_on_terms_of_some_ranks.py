"""A term of the loss that only some ranks compute, while the gradients of all are averaged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradledger.records import StepRecord
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term


def window(number: int, further: float | None) -> StepRecord:
    """A cross entropy, and a squared error with this coefficient; None is without."""
    terms = [term(8, 1 / 8)]
    if further is not None:
        terms.append(term(8, further / 8, kind="MseLossBackward0"))
    return record([terms], number, wrapper="ddp", sync="averaged")


def finding_of(*ranks: Sequence[float | None]) -> Finding | None:
    """The finding where each rank has the coefficients of a step, by step."""
    steps = [
        facts(
            *(window(n, further) for further in coefficients),
        )
        for n, coefficients in enumerate(zip(*ranks, strict=True), 1)
    ]
    return next((f for f in judged(steps).findings if f.rule == "loss.on_some_ranks"), None)


def test_a_term_of_one_rank_has_half_of_its_weight() -> None:
    finding = finding_of([0.3] * 12, [None] * 12)
    assert finding is not None and finding.severity == "warning"
    assert finding.evidence["ranks"] == [0] and finding.evidence["of_ranks"] == 2
    assert finding.evidence["share_of_steps"] == 1
    assert finding.evidence["balance"] == pytest.approx(0.15)


def test_of_two_of_four_ranks() -> None:
    finding = finding_of([0.3] * 12, [0.3] * 12, [None] * 12, [None] * 12)
    assert finding is not None and finding.evidence["ranks"] == [0, 1]
    assert "contain 2/4 of the weight" in finding.summary


def test_a_term_of_all_ranks_at_different_steps_is_none() -> None:
    assert finding_of([0.3, None] * 12, [None, 0.3] * 12) is None


def test_multiplied_by_the_number_of_ranks_it_is_none() -> None:
    assert finding_of([2.0] * 12, [None] * 12) is None


def test_a_rare_term_is_none() -> None:
    assert finding_of([0.3] * 9 + [None] * 9, [None] * 18) is None
    assert finding_of(([0.3] + [None] * 7) * 12, [None] * 96) is None
