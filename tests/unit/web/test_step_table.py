"""The rows and the sentence of a step page."""

from __future__ import annotations

import pytest
from pytest import approx

from gradledger.records import StepRecord, encode
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.step_facts import RunInfo, StepFacts, merge
from gradledger_web import step_table
from helpers.batches import fair_step, step


def facts(record: StepRecord, world_size: int = 1) -> StepFacts:
    """A step as the service has it if only rank 0 reported."""
    decoded = schema.decoder.decode(encode(record))
    assert isinstance(decoded, schema.StepRecord)
    return merge(RunInfo("r1", "a run", world_size), 0, 1, {0: decoded})


def test_rows_hold_both_shares_and_the_relative_weight() -> None:
    first, second = step_table.rows(facts(step(1, tokens=(10, 30))))
    assert (first.token_share, first.gradient_share) == approx((0.25, 0.5))
    assert (first.relative, second.relative) == approx((2, 2 / 3))
    assert (first.deviation, second.deviation) == ("over", "under")
    assert first.loss == approx(1.0)


def test_the_sentence_names_the_micro_batch_with_the_largest_difference() -> None:
    merged = facts(step(1, tokens=(30, 30, 240)))
    summary = step_table.summarize(step_table.rows(merged), merged)
    assert "Micro-batch 3 has 80.0% of the tokens and 33.3% of the gradient" in summary.sentence
    assert summary.tone == "broken"


def test_a_fair_step_is_balanced() -> None:
    merged = facts(fair_step(1))
    assert step_table.summarize(step_table.rows(merged), merged).tone == "balanced"


def test_equal_weights_with_a_wrong_sum_are_reported() -> None:
    halved = fair_step(1)
    halved.post_factor = 0.5
    merged = facts(halved)
    summary = step_table.summarize(step_table.rows(merged), merged)
    assert "B = 0.5 instead of 1" in summary.sentence


def test_without_a_ledger_the_reason_is_shown() -> None:
    merged = facts(step(1), world_size=2)
    rows = step_table.rows(merged)
    assert "no record of rank 1 arrived" in step_table.summarize(rows, merged).sentence
    assert {row.relative for row in rows} == {None}


def test_a_huge_step_shows_the_rows_with_the_largest_difference() -> None:
    merged = facts(step(1, tokens=(*[100] * 600, 1000)))
    rows = step_table.rows(merged)
    shown = step_table.worst_rows(rows)
    assert len(shown) == step_table.MOST_ROWS
    assert shown[0].micro_batch == 601


@pytest.mark.parametrize(
    ("name", "shown"),
    [("NllLossBackward0#0", "NllLoss"), ("NllLossBackward0#1", "NllLoss 2"), ("Liger#0", "Liger")],
)
def test_names_of_loss_terms_are_shortened(name: str, shown: str) -> None:
    assert step_table.short_term_name(name) == shown
