"""Unequal weights: where they differ, and what else the finding may say of it."""

from __future__ import annotations

import pytest

from gradledger.records import StepRecord
from gradledger_monitor.findings import Finding
from helpers.facts import facts, judged, record, term

RULE = "reduction.token_weights_unequal"


def found(*ranks: StepRecord) -> Finding | None:
    """What is said of one step."""
    return next((f for f in judged([facts(*ranks)]).findings if f.rule == RULE), None)


def rank(*weights: float) -> StepRecord:
    """Micro-batches of ten, twenty, ... tokens with these weights, averaged over ranks."""
    terms = [term(10 * place, weight, "sum") for place, weight in enumerate(weights, 1)]
    return record(terms, sync="averaged")


def differ(*ranks: StepRecord) -> str:
    told = found(*ranks)
    assert told is not None
    return str(told.evidence["differ"])


def test_it_says_whether_weights_differ_inside_a_rank_or_between_them() -> None:
    assert differ(rank(0.02, 0.03)) == "between micro-batches"
    assert differ(rank(0.02, 0.03), rank(0.02, 0.03)) == "between micro-batches"
    assert differ(rank(0.02, 0.02), rank(0.03, 0.03)) == "between ranks"
    assert differ(rank(0.02), rank(0.02, 0.03)) == "between micro-batches and between ranks"


def test_ranks_whose_tokens_weigh_alike_on_average_do_not_differ_however_many_they_hold() -> None:
    more = record([term(n, w, "sum") for n, w in ((20, 0.02), (40, 0.03))], sync="averaged")
    assert differ(rank(0.02, 0.03), more) == "between micro-batches"


def test_without_a_loss_that_was_seen_nothing_is_said_of_it() -> None:
    blind = rank(0.02, 0.06)
    for micro_batch in blind.micro_batches:
        micro_batch.loss = None
    told = found(blind)
    assert told is not None
    assert told.summary.endswith("as one of the micro-batch with 10.")


def test_without_the_factor_after_backward_the_balance_is_not_told_and_the_weights_are() -> None:
    blind = record([term(10, 0.02, "sum"), term(20, 0.06, "sum")], post_factor=None)
    told = found(blind)
    assert told is not None
    assert told.evidence["balance"] is None
    assert told.evidence["relative_weights"] == [0.4286, 1.2857]


@pytest.mark.parametrize(
    ("contract", "is_told"), [("sequence", False), ("sample", False), ("token", True), (None, True)]
)
def test_who_declares_another_contract_is_not_told_that_tokens_differ(
    contract: str | None, is_told: bool
) -> None:
    step = facts(rank(0.02, 0.06), contract=contract)
    assert (RULE in {f.rule for f in judged([step]).findings}) is is_told
