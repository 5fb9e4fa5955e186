"""The rows and the sentence of a step page."""

from __future__ import annotations

import pytest
from pytest import approx

from gradledger.delivery.encoding import encode
from gradledger.records import StepRecord, Term
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.step_facts import RunInfo, StepFacts, merge
from gradledger_monitor.rules.objective_verdicts import ObjectiveVerdict, objective_verdicts
from gradledger_monitor.rules.rule import Window
from gradledger_web import step_table
from helpers.batches import fair_step, step


def facts(record: StepRecord, world_size: int = 1) -> StepFacts:
    """A step as the service has it if only rank 0 reported."""
    decoded = schema.decoder.decode(encode(record))
    assert isinstance(decoded, schema.StepRecord)
    return merge(RunInfo("r1", "a run", world_size), 0, 1, {0: decoded})


def verdicts(merged: StepFacts) -> list[ObjectiveVerdict]:
    """Of the objectives of a step that has no history."""
    return objective_verdicts(Window(merged))


def rows(merged: StepFacts) -> list[step_table.Row]:
    """Of its heaviest objective."""
    return step_table.rows(merged, verdicts(merged)[0])


def summary(merged: StepFacts) -> step_table.StepSummary:
    """Its sentence."""
    return step_table.summarize(merged, verdicts(merged))


def test_rows_hold_both_shares_and_the_relative_weight() -> None:
    first, second = rows(facts(step(1, tokens=(10, 30))))
    assert (first.token_share, first.gradient_share) == approx((0.25, 0.5))
    assert (first.relative, second.relative) == approx((2, 2 / 3))
    assert (first.deviation, second.deviation) == ("over", "under")
    assert first.loss == approx(1.0)


def test_the_sentence_names_the_micro_batch_with_the_largest_difference() -> None:
    found = summary(facts(step(1, tokens=(30, 30, 240))))
    assert "Micro-batch 3 has 80.0% of the tokens and 33.3% of the gradient" in found.sentence
    assert found.tone == "broken"


def test_a_fair_step_is_balanced() -> None:
    assert summary(facts(fair_step(1))).tone == "balanced"


def test_equal_weights_with_a_wrong_sum_are_reported() -> None:
    doubled = fair_step(1, tokens=(20, 20))
    doubled.post_factor = 2.0
    assert summary(facts(doubled)).sentence == (
        "All tokens of this step have equal weight, but their sum is wrong: "
        "not divided by K = 2 (B = 2)."
    )


def test_a_penalty_that_is_not_divided_has_its_own_sentence() -> None:
    decay = Term("SumBackward0", "sum", penalty=True, elements=1, element_weight=0.01)
    decay.coefficient, decay.undivided = 0.01, True
    sent = fair_step(1, tokens=(10, 10, 10, 10))
    for micro_batch in sent.micro_batches:
        micro_batch.terms.append(decay)
    merged = facts(sent)
    assert summary(merged).sentence == (
        "The penalty on the parameters is not divided by K = 4 (B = 0.04)."
    )
    assert [len(step_table.rows(merged, verdict)) for verdict in verdicts(merged)] == [4, 4]


def test_chunks_of_one_loss_are_rows_of_one_objective() -> None:
    sent = fair_step(1, tokens=(10, 30))
    for micro_batch in sent.micro_batches:
        micro_batch.terms = [
            Term("NllLossBackward0", "sum", tokens, size=tokens, weight=1 / 40, head=7)
            for tokens in ((micro_batch.terms[0].tokens or 0) // 2,) * 2
        ]
    found = rows(facts(sent))
    assert [row.label for row in found] == ["1 part 1", "1 part 2", "2 part 1", "2 part 2"]
    assert sum(row.gradient_share for row in found) == approx(1.0)


def test_terms_without_tokens_are_listed_apart() -> None:
    sent = fair_step(1)
    sent.micro_batches[0].terms.append(Term("MeanBackward0", "mean", 0))
    merged = facts(sent)
    (row,) = step_table.uncounted_rows(merged, verdicts(merged))
    assert (row.term, row.relative) == ("Mean", None)


def test_without_a_ledger_the_reason_is_shown() -> None:
    skipped = step(1)
    skipped.skipped = True
    merged = facts(skipped)
    assert "the GradScaler skipped this step" in summary(merged).sentence
    assert {row.relative for row in step_table.uncounted_rows(merged, [])} == {None}


def test_a_step_without_the_record_of_a_rank_is_about_the_others() -> None:
    found = summary(facts(fair_step(1), world_size=2))
    assert found.sentence == (
        "The tokens of the ranks that reported have equal weight; no record of rank 1 arrived."
    )
    assert found.tone == "incomplete"
    assert "25.0% of the tokens and 50.0%" in summary(facts(step(1), world_size=2)).sentence


def test_a_huge_step_shows_the_rows_with_the_largest_difference() -> None:
    shown = step_table.worst_rows(rows(facts(step(1, tokens=(*[100] * 600, 1000)))))
    assert len(shown) == step_table.MOST_ROWS
    assert shown[0].micro_batch == 601


@pytest.mark.parametrize(("name", "shown"), [("NllLossBackward0", "NllLoss"), ("Liger", "Liger")])
def test_names_of_loss_terms_are_shortened(name: str, shown: str) -> None:
    assert step_table.short_term_name(name) == shown
