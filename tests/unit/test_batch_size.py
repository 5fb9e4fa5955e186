"""The batch size of a step in samples and tokens: counted if the record shows it, else None."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradledger.records import StepRecord, Term
from gradledger_monitor.model.batch_size import samples_of
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import facts, record, term


def rows(samples: int, length: int, **more: Any) -> Term:
    """A loss over ``samples`` sequences; four of the tokens are padding."""
    tokens = samples * length - 4
    return term(tokens, 1 / 100, rows=samples, size=samples * length, **more)


def of_each(step: StepFacts) -> list[int | None]:
    """Samples in each micro-batch, rank by rank."""
    return [samples_of(m, r) for r in step.records.values() for m in r.micro_batches]


def test_samples_and_tokens_are_added_up_over_micro_batches_and_ranks() -> None:
    step = facts(record([rows(8, 16), rows(8, 10)]), record([rows(8, 16), rows(4, 16)]))
    assert of_each(step) == [8, 8, 8, 4]
    assert step.samples == 28
    assert step.batch_tokens == 124 + 76 + 124 + 60


def test_a_flat_target_does_not_show_whether_its_rows_are_samples() -> None:
    step = facts(record([term(32, 1 / 32)]))  # as many rows as elements
    assert of_each(step) == [None]
    assert step.samples is None
    assert step.batch_tokens == 32


def test_one_unknown_micro_batch_leaves_the_step_unknown() -> None:
    step = facts(record([rows(8, 16), term(32, 1 / 32)]))
    assert of_each(step) == [8, None]
    assert step.samples is None


def test_losses_of_one_batch_count_it_once() -> None:
    step = facts(record([[rows(8, 16), rows(8, 5)]]))
    assert (step.samples, step.batch_tokens) == (8, 124)


def test_a_ctc_loss_has_one_element_for_each_sample() -> None:
    ctc = replace(term(8, 1 / 8, "none", elements=8), kind="CtcLossBackward0", rows=None, size=None)
    assert facts(record([[rows(8, 16), ctc]])).samples == 8
    assert facts(record([[rows(4, 16), ctc]])).samples is None


def test_losses_of_different_batches_leave_it_unknown() -> None:
    assert facts(record([[rows(8, 16), rows(2, 16)]])).samples is None


def test_chunks_of_one_loss_add_up_in_tokens_and_hide_the_samples() -> None:
    step = facts(record([[rows(8, 16, head=1), rows(8, 16, head=1)]]))
    assert (step.samples, step.batch_tokens) == (None, 248)


def test_discarded_micro_batches_are_not_part_of_the_batch() -> None:
    sent = record([rows(8, 16), rows(4, 16)])
    sent.micro_batches[1].fresh = True
    assert facts(sent).samples == 4


def test_without_every_rank_or_any_micro_batch_nothing_is_known() -> None:
    alone = facts(record([rows(8, 16)]), world_size=2)
    assert (alone.samples, alone.batch_tokens) == (None, None)
    empty = facts(StepRecord(0, 1, 1.0))
    assert (empty.samples, empty.batch_tokens) == (None, None)


def test_the_loader_shows_the_samples_if_each_micro_batch_is_one_of_its_batches() -> None:
    flat = [term(32, 1 / 64), term(32, 1 / 64)]
    assert facts(record(flat, batches=2, batch_size=32)).samples == 64  # a classifier's rows
    assert facts(record(flat, batches=2, batch_size=8)).samples == 16  # sequences of four tokens
    assert facts(record(flat, batches=1, batch_size=32)).samples is None  # a batch cut in two
    assert facts(record(flat, batches=2, batch_size=24)).samples is None  # another loader's
    assert facts(record([rows(8, 16)], batches=3, batch_size=7)).samples == 8  # the graph decides
