"""Ranks that combine their gradients by themselves are judged like DDP's, where it can be proved.

Which tokens weighed what is solved from the applied gradient and the tokens of *both* ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gradledger_monitor.model.chart_metrics import chart_metrics
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.trained_apart import ALONE_AND_COMMUNICATES
from helpers.ranks import play
from helpers.training import (
    Truth,
    accused,
    assert_ledger_is_true,
    facts_of,
    judged,
    steps_of,
    tiny_model,
    token_gradients,
)

RANKS = 2
UNEQUAL, WORLD = "reduction.token_weights_unequal", "reduction.world_size"

RankResults = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[RankResults]:
    """The output of each rank of combined_ranks.py."""
    return play(Path(__file__).parent / "combined_ranks.py", tmp_path_factory.mktemp("ranks"))


def facts(ranks: list[RankResults], name: str) -> list[StepFacts]:
    """One row's steps, the ranks merged."""
    return facts_of([steps_of(rank[name]["lines"]) for rank in ranks])


def truth(ranks: list[RankResults], name: str, index: int) -> Truth:
    """The weights of all tokens of both ranks, from the gradient that both applied."""
    (parameters, gradient), (_, others) = (rank[name]["steps"][index] for rank in ranks)
    assert torch.equal(gradient, others)
    windows = [batch for rank in ranks for batch in rank[name]["windows"][index]]
    return Truth.solve(*token_gradients(tiny_model(), parameters, windows), gradient)


ROWS = [
    # row, what the sum over the ranks is multiplied by, the rule that must be named with its step,
    # true balance
    ("averaged", 1 / RANKS, {}, 1),
    ("summed", 1, {}, 1),
    ("flattened", 1 / RANKS, {}, 1),
    ("never divided", 1, {WORLD: 1}, RANKS),
    ("never divided, K = R", 1, {WORLD: 1}, RANKS),
    ("divided twice", 1 / RANKS**2, {WORLD: 1}, 1 / RANKS),
    ("K forgotten", 1 / RANKS, {"reduction.missing_division": 1}, 4),
    ("own count", 1 / RANKS, {UNEQUAL: 1}, 1),
    ("moved", 1 / RANKS, {}, 1),
    ("moved, never divided", 1, {WORLD: 1}, RANKS),
    ("hook averages", 1 / RANKS, {}, 1),
    ("hook sums", 1, {WORLD: 1}, RANKS),
]


@pytest.mark.parametrize(("name", "factor", "named", "balance"), ROWS, ids=[row[0] for row in ROWS])
def test_each_way_to_combine_by_hand_is_measured_and_named(
    ranks: list[RankResults], name: str, factor: float, named: dict[str, int], balance: float
) -> None:
    steps = facts(ranks, name)
    assert [fact.step for fact in steps] == [1, 2, 3, 4]
    for index, fact in enumerate(steps):
        recorded = truth(ranks, name, index)
        assert fact.all_reduce_factor == pytest.approx(factor, rel=1e-4)
        assert recorded.balance == pytest.approx(balance, rel=1e-3)
        assert_ledger_is_true(fact, recorded)
    evaluation = judged(steps)
    assert accused(evaluation) == named
    assert evaluation.verdict == (
        "broken" if UNEQUAL in named else "suspect" if named else "balanced"
    )


@pytest.mark.parametrize(
    ("name", "factor", "named"),
    [("moved, averaged inside", 1 / RANKS, {}), ("moved, summed inside", 1, {WORLD: 2})],
)
def test_moved_gradients_that_are_combined_inside_backward_are_measured_from_the_second_window_on(
    ranks: list[RankResults], name: str, factor: float, named: dict[str, int]
) -> None:
    first, *steps = facts(ranks, name)
    assert first.factor_unmeasured
    for index, fact in enumerate(steps, 1):
        assert fact.all_reduce_factor == pytest.approx(factor, rel=1e-4)
        assert_ledger_is_true(fact, truth(ranks, name, index))
    assert accused(judged([first, *steps])) == named


def test_the_weights_that_a_loop_gives_the_ranks_are_measured(ranks: list[RankResults]) -> None:
    steps = facts(ranks, "by rank")
    for index, fact in enumerate(steps):
        assert_ledger_is_true(fact, truth(ranks, "by rank", index))
    assert accused(judged(steps)) == {UNEQUAL: 1}  # its own weights are no counts


@pytest.mark.parametrize("name", ["thawed", "extended"])
def test_parameters_that_are_unfrozen_or_added_under_ddp_are_outside_of_it(
    ranks: list[RankResults], name: str
) -> None:
    steps = facts(ranks, name)
    assert [fact.record.outside for fact in steps] == [0, 2, 2, 2]
    (finding,) = judged(steps).findings
    assert (finding.rule, finding.first_step) == ("ddp.replica_drift", 2)
    assert finding.title == "Trained outside the DDP wrapper: 2 parameters"
    assert "were added to it after it was wrapped" in finding.summary


def test_ddp_whose_parameters_are_all_replaced_synchronises_nothing(
    ranks: list[RankResults],
) -> None:
    evaluation = judged(facts(ranks, "replaced"))
    assert accused(evaluation) == {"ddp.never_synced": 1}


@pytest.mark.parametrize(
    ("name", "balance", "named"),
    [("averaged in the step", 1, {}), ("divided twice in the step", 1 / RANKS, {WORLD: 1})],
)
def test_ranks_that_combine_in_a_hook_of_the_step_are_measured(
    ranks: list[RankResults], name: str, balance: float, named: dict[str, int]
) -> None:
    steps = facts(ranks, name)
    for index, fact in enumerate(steps):
        assert fact.ledger is not None
        assert truth(ranks, name, index).balance == pytest.approx(balance, rel=1e-3)
        assert fact.ledger.balance == pytest.approx(balance, rel=1e-3)
        _, gradient = ranks[0][name]["steps"][index]
        assert fact.norm == pytest.approx(float(gradient.norm()), rel=1e-3)
    assert accused(judged(steps)) == named


def test_the_finding_states_which_factor_the_loop_applies_and_which_would_be_right(
    ranks: list[RankResults],
) -> None:
    (finding,) = judged(facts(ranks, "never divided")).findings
    assert "multiplies the sum of the ranks' gradients by 1; " in finding.summary
    assert "the right factor for this loss is 0.5" in finding.summary
    assert finding.evidence["loop_factor"] == 1
    (finding,) = judged(facts(ranks, "own count")).findings
    assert finding.evidence["differ"] == "between ranks"


def test_clipping_what_was_combined_does_not_move_the_balance(ranks: list[RankResults]) -> None:
    steps = facts(ranks, "clipped")
    assert [chart_metrics(f)["balance"] for f in steps] == pytest.approx([1] * 4, rel=1e-3)
    assert [chart_metrics(f)["norm"] for f in steps] == pytest.approx([1e-3] * 4, rel=1e-2)
    evaluation = judged(steps)
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


def test_clipping_multiples_of_one_gradient_is_no_clipping_before_the_sum(
    ranks: list[RankResults],
) -> None:
    assert "clip.local_norm" not in accused(judged(facts(ranks, "scaled and clipped")))


def test_clipping_what_is_combined_afterwards_is_named(ranks: list[RankResults]) -> None:
    (finding,) = (
        f for f in judged(facts(ranks, "clipped before")).findings if f.severity != "info"
    )
    assert (finding.rule, finding.severity) == ("clip.local_norm", "warning")
    assert len(set(finding.evidence["norms"])) == RANKS
    unlimited = judged(facts(ranks, "not clipped before"))
    assert (accused(unlimited), unlimited.verdict) == ({}, "balanced")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hook rounds", "combined, but not as a sum"),
        ("out of sight", "communicates with other ranks in its step, out of sight"),
    ],
)
def test_what_is_no_sum_of_the_ranks_is_not_measured_and_states_so(
    ranks: list[RankResults], name: str, reason: str
) -> None:
    evaluation = judged(facts(ranks, name))
    assert (accused(evaluation), evaluation.verdict) == ({}, "incomplete")
    (reduction,) = [node for node in evaluation.tree if node.node == "reduction"]
    assert reduction.reason.endswith(reason)


def test_a_sum_on_top_of_sums_is_not_measured_nor_called_harmless(ranks: list[RankResults]) -> None:
    evaluation = judged(facts(ranks, "hook sums each"))
    (finding,) = evaluation.findings
    assert finding.rule == "ddp.missing_no_sync"
    assert "The effect on the gradient depends on the comm hook" in finding.summary
    (reduction,) = [node for node in evaluation.tree if node.node == "reduction"]
    assert reduction.reason.endswith("combined anew on top of combined ones")


def test_ranks_that_only_all_reduce_a_loss_are_evaluated_alone(ranks: list[RankResults]) -> None:
    steps = facts(ranks, "loss all-reduced")
    assert [chart_metrics(f)["balance"] for f in steps] == pytest.approx([1] * 4, rel=1e-3)
    evaluation = judged(steps)
    assert (accused(evaluation), evaluation.verdict) == ({}, "incomplete")
    assert evaluation.coverage["ddp.replica_drift"] == f"not_measured: {ALONE_AND_COMMUNICATES}"


def test_a_hook_of_pytorchs_own_that_averages_is_known(ranks: list[RankResults]) -> None:
    steps = facts(ranks, "fp16 compressed")
    assert {f.record.sync for f in steps} == {"averaged"}
    assert [chart_metrics(f)["balance"] for f in steps] == pytest.approx([1] * 4, rel=1e-3)
    assert judged(steps).verdict == "balanced"


def test_a_hook_that_averages_may_run_on_every_micro_batch(ranks: list[RankResults]) -> None:
    steps = facts(ranks, "hook averages each")
    for index, fact in enumerate(steps[1:], 1):
        assert_ledger_is_true(fact, truth(ranks, "hook averages each", index))
    assert accused(judged(steps)) == {"ddp.missing_no_sync": 2}


def test_no_hook_is_left_on_a_parameter(ranks: list[RankResults]) -> None:
    assert {rank[name]["hooks left"] for rank in ranks for name in rank if "hook" in name} == {0}


def test_a_hook_is_measured_from_its_second_backward_on(ranks: list[RankResults]) -> None:
    first, *others = facts(ranks, "hook averages, K = 1")
    assert first.unmeasured == "how the ranks' gradients were combined was not seen"
    assert [f.all_reduce_factor for f in others] == pytest.approx([1 / RANKS] * 3, rel=1e-4)


# ------------------------------------------------------- parameters outside the DDP wrapper


def test_a_head_outside_ddp_that_the_loop_averages_is_measured(ranks: list[RankResults]) -> None:
    steps = facts(ranks, "head averaged")
    for index, fact in enumerate(steps):
        assert_ledger_is_true(fact, truth(ranks, "head averaged", index))
    assert judged(steps).verdict == "balanced"


def test_a_head_outside_ddp_whose_gradients_are_only_summed_is_named(
    ranks: list[RankResults],
) -> None:
    evaluation = judged(facts(ranks, "head summed"))
    assert (accused(evaluation), evaluation.verdict) == ({WORLD: 1}, "suspect")
    (finding,) = evaluation.findings
    assert finding.evidence["divisors"] == [RANKS, 1]
    assert "Compared with the rest, their gradient is 2 times too large." in finding.summary


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("head times 3", "by another factor than the rest"),
        ("head combined by rank", "combined, but not as a sum"),
    ],
)
def test_a_head_outside_ddp_that_is_combined_otherwise_is_not_measured(
    ranks: list[RankResults], name: str, reason: str
) -> None:
    evaluation = judged(facts(ranks, name))
    assert (accused(evaluation), evaluation.verdict) == ({}, "incomplete")
    (reduction,) = [node for node in evaluation.tree if node.node == "reduction"]
    assert reduction.reason.endswith(reason)


def test_a_head_outside_ddp_is_not_measured_where_ranks_only_all_reduce_a_loss(
    ranks: list[RankResults],
) -> None:
    evaluation = judged(facts(ranks, "head without, loss all-reduced"))
    (reduction,) = [node for node in evaluation.tree if node.node == "reduction"]
    assert reduction.reason.endswith("outside the wrapper was not seen")
