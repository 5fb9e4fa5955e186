"""A loop combines gradients of experts over their copies, and those of the rest over all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from gradledger.records import Replica, Samples, StepRecord
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import accused, facts, judged, record, term

WORLD = "reduction.world_size"
SHARED = ([1.0, -2.0, 0.5], [3.0, 1.0, -0.25], [0.5, 2.0, 1.0], [1.5, -0.5, 3.0])
EXPERTS = ([2.0, 1.0, -1.0], [7.0, -3.0, 2.0], [1.0, 5.0, 0.5], [-2.0, 1.0, 4.0])
COPIES = ([0, 2], [1, 3])  # ranks with one expert


def added(rows: Any, ranks: list[int], factor: float) -> list[float]:
    return [factor * sum(rows[rank][i] for rank in ranks) for i in range(3)]


def ranks(of_all: float, of_groups: float, **more: Any) -> list[StepRecord]:
    """Four ranks with data of their own, which exchange activations."""
    records = []
    for rank in range(4):
        applied = [
            *added(SHARED, [0, 1, 2, 3], of_all),
            *added(EXPERTS, COPIES[rank % 2], of_groups),
        ]
        sent: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 8}
        sent |= {"samples": Samples([*SHARED[rank], *EXPERTS[rank]], applied), "changed": True}
        sent["before_hooks"] = True  # from the second window on
        # the embedding, and one expert: another one on each rank of a pair
        sent["replica"] = Replica(2, [0, 1], [5.0, float(rank % 2)], [[4], [4]])
        step = record([term(10, 1 / 10)], **{**sent, **more})
        step.micro_batches[0].fingerprint = float(rank + 1)
        step.micro_batches[0].loss, step.micro_batches[0].collectives = 1.0 + rank, 2
        records.append(step)
    return records


def merged(of_all: float, of_groups: float, **more: Any) -> StepFacts:
    return facts(*ranks(of_all, of_groups, **more))


def test_one_divisor_for_all_is_right() -> None:
    step = merged(0.25, 0.25)
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((40, 1))
    evaluation = judged([step])
    assert accused(evaluation) == {}
    assert evaluation.coverage["ddp.replica_drift"].startswith("ok")


@pytest.mark.parametrize(
    ("of_groups", "size"), [(0.5, "2 times too large"), (1, "4 times too large"), (0.125, "small")]
)
def test_another_divisor_for_experts_is_named(of_groups: float, size: str) -> None:
    evaluation = judged([merged(0.25, of_groups)])
    assert accused(evaluation) == {WORLD: 1}
    (finding,) = (f for f in evaluation.findings if f.rule == WORLD)
    assert size in finding.summary and "(0, 2; 1, 3)" in finding.summary


def test_a_factor_that_is_no_number_of_ranks_is_only_the_reason() -> None:
    step = merged(0.25, 0.175)
    assert accused(judged([step])) == {}
    assert "0.25 in parameters that all ranks hold, and by 0.175" in str(step.unmeasured)


def test_ranks_with_the_same_data_may_hold_parts_of_one_layer() -> None:
    sent = ranks(0.25, 0.5)
    for each in sent:
        each.micro_batches[0].fingerprint = 1.0
    step = facts(*sent)
    assert "the ranks step on different gradients" in str(step.unmeasured)
    assert WORLD not in accused(judged([step]))


@pytest.mark.parametrize("more", [{"collectives_after": 0}, {"wrapper": "ddp"}])
def test_nothing_is_claimed_of_hooks_and_wrappers(more: dict[str, Any]) -> None:
    assert WORLD not in accused(judged([merged(0.25, 0.5, **more)]))


def test_ranks_that_only_combine_are_no_holders_of_parts() -> None:
    """Without communication within backward, each gradient is of one rank's tokens."""
    sent = ranks(0.25, 0.5)
    for each in sent:
        each.micro_batches[0].collectives = 0
    assert WORLD not in accused(judged([facts(*sent)]))


def test_equal_copies_that_drift_are_not_called_parts() -> None:
    steps = [merged(0.25, 0.25, replica=Replica(2, [0, 1], [5.0, 1.0], [[4], [4]]))]
    sent = ranks(0.25, 0.25)
    for each in sent:
        each.step = 2
    coverage = judged([*steps, facts(*sent)]).coverage["ddp.replica_drift"]
    assert not coverage.startswith("ok: groups")


def alone(of_all: float, of_groups: float) -> StepFacts:
    """Without an exchange: the tokens of a pair alone reach its expert."""
    records = ranks(of_all, of_groups)
    for each in records:
        each.micro_batches[0].collectives, each.before_hooks = 0, False
    return facts(*records)


def test_without_an_exchange_one_divisor_is_right_too() -> None:
    step = alone(0.25, 0.25)
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((40, 1))
    assert accused(judged([step])) == {}


def test_without_an_exchange_another_divisor_may_be_meant() -> None:
    step = alone(0.25, 0.5)
    assert step.ledger is None
    assert accused(judged([step])) == {}
