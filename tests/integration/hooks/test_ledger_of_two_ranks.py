"""The rows of the table that need ranks: two processes, gloo, DDP with no_sync, each number proved.

Which tokens weighed what is solved from the applied gradient and the tokens of *both* ranks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradledger_monitor.model.step_facts import StepFacts, merge
from helpers.training import (
    Truth,
    accused,
    assert_ledger_is_true,
    facts_of,
    judged,
    steps_of,
    tiny_model,
    token_gradients,
    tokens,
)

from .conftest import Ranks

RANKS = 2


def facts(rows: Ranks, name: str) -> list[StepFacts]:
    """One row's steps, the ranks merged."""
    return facts_of([steps_of(rank[name]["lines"]) for rank in rows])


def truth(rows: Ranks, name: str, index: int) -> Truth:
    """The weights of all tokens of both ranks, from the gradient that both applied."""
    (parameters, gradient), (_, others) = (rank[name]["steps"][index] for rank in rows)
    assert torch.equal(gradient, others)
    windows = [batch for rank in rows for batch in rank[name]["windows"][index]]
    return Truth.solve(*token_gradients(tiny_model(), parameters, windows), gradient)


def all_tokens(rows: Ranks, name: str, index: int) -> int:
    return sum(tokens(batch) for rank in rows for batch in rank[name]["windows"][index])


UNEQUAL, WORLD = "reduction.token_weights_unequal", "reduction.world_size"
SUM = "reduction.unnormalised_sum"

ROWS = [
    # row, the rules that must be named with their steps, true balance
    pytest.param("right", {}, lambda n: 1, id="right: sum / N * R"),
    pytest.param("right, K = R", {}, lambda n: 1, id="right, with as many micro-batches as ranks"),
    pytest.param("own count", {UNEQUAL: 1}, lambda n: 1, id="each rank by its own N_r"),
    pytest.param("averaged again", {WORLD: 2}, lambda n: 1 / RANKS, id="N, averaged"),
    pytest.param("averaged again, K = R", {WORLD: 2}, lambda n: 1 / RANKS, id="the same, K = R"),
    pytest.param("multiplied twice", {WORLD: 2}, lambda n: RANKS, id="R once too often"),
    pytest.param("never divided", {SUM: 1}, lambda n: n / RANKS, id="never divided"),
    pytest.param("mean of means", {UNEQUAL: 1}, lambda n: 1, id="mean of means"),
]


@pytest.mark.parametrize(("name", "named", "balance"), ROWS)
def test_each_way_to_reduce_over_ranks_is_measured_and_named(
    two_ranks: Ranks, name: str, named: dict[str, int], balance: Any
) -> None:
    steps = facts(two_ranks, name)
    assert [fact.step for fact in steps] == [1, 2, 3, 4]
    for index, fact in enumerate(steps):
        true = truth(two_ranks, name, index)
        assert true.balance == pytest.approx(balance(all_tokens(two_ranks, name, index)), rel=1e-3)
        assert_ledger_is_true(fact, true)
    assert accused(judged(steps)) == named


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("own count", "between ranks"),
        ("mean of means, fair ranks", "between micro-batches"),
        ("mean of means", "between micro-batches and between ranks"),
    ],
)
def test_the_finding_states_where_the_weights_differ(
    two_ranks: Ranks, name: str, where: str
) -> None:
    (finding,) = judged(facts(two_ranks, name)).findings
    assert finding.evidence["differ"] == where


def test_a_rank_whose_record_is_missing_leaves_the_balance_unmeasured(two_ranks: Ranks) -> None:
    (step, *_) = facts(two_ranks, "right")
    alone = facts_of([steps_of(two_ranks[0]["right"]["lines"])])[0]
    half = merge(step.run, 0, 1, {0: alone.records[0]})
    assert half.ledger is not None
    assert half.factor_unmeasured == "no record of rank 1 arrived"
    assert judged([half]).verdict == "incomplete"


@pytest.mark.parametrize(
    ("name", "balance"), [("join, all", 0.5), ("join, active", 1.0), ("join, comm hook", 0.5)]
)
def test_in_a_join_context_the_balance_is_that_of_the_ranks_with_data(
    two_ranks: Ranks, name: str, balance: float
) -> None:
    alone = facts_of([steps_of(two_ranks[0][name]["lines"])])[3].records
    info = facts(two_ranks, "right")[0].run
    step = merge(info, 0, 4, alone)
    row = two_ranks[0][name]
    parameters, gradient = row["steps"][3]
    true = Truth.solve(*token_gradients(tiny_model(), parameters, row["windows"][3]), gradient)
    assert true.balance == pytest.approx(balance, rel=1e-3)
    assert step.ledger is not None and step.factor_unmeasured is None
    assert step.ledger.balance == pytest.approx(true.balance, rel=1e-3)
