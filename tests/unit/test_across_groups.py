"""DDP averages over groups of ranks, and the loop combines the groups."""

from __future__ import annotations

from typing import Any

import pytest

from gradledger.records import Samples, StepRecord
from helpers.facts import accused, facts, judged, record, term

GROUPS = ([0, 2], [1, 3])
OF_GROUP = ([1.0, 2.0, -3.0, 4.0], [5.0, -1.0, 2.0, 0.5])  # what DDP averaged


def ranks(applied: list[list[float]], **more: Any) -> list[StepRecord]:
    """The records of four ranks whose group g steps on ``applied[g]``; each token weighs 1/N."""
    records = []
    for rank in range(4):
        group = rank % 2
        sent = {
            "sync": "averaged",
            "wrapper": "ddp",
            "data_group": GROUPS[group],
            "collectives_after": 4,
            "post_factor": None,
            "changed": True,
            "samples": Samples(OF_GROUP[group], applied[group], []),
        }
        step = record([term(10, 1 / 10)], **{**sent, **more})
        step.micro_batches[0].fingerprint = float(rank + 1)
        records.append(step)
    return records


def summed(factor: float) -> list[list[float]]:
    return [[factor * (a + b) for a, b in zip(*OF_GROUP, strict=True)]] * 2


@pytest.mark.parametrize(("factor", "balance"), [(0.5, 1), (1, 2), (0.25, 0.5)])
def test_groups_that_the_loop_combines_are_one(factor: float, balance: float) -> None:
    step = facts(*ranks(summed(factor)))
    assert (step.run.world_size, list(step.records)) == (4, [0, 1, 2, 3])
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((40, balance))
    assert step.all_reduce_factor == pytest.approx(factor / 2)  # of the sum over four ranks
    named = accused(judged([step]))
    assert named == ({} if balance == 1 else {"reduction.world_size": 1})


def test_a_factor_of_the_groups_is_explained_by_both_reductions() -> None:
    (finding,) = judged([facts(*ranks(summed(1)))]).findings
    assert "DDP averages over each of 2 groups of ranks" in finding.summary
    assert "by 1; the right factor for this loss is 0.5" in finding.summary
    assert "group=across" in finding.fix


def test_groups_may_have_weights_of_their_own() -> None:
    weighted = [[0.8 * a + 0.2 * b for a, b in zip(*OF_GROUP, strict=True)]] * 2
    longer = [([*of, *more], Samples) for of, more in zip(OF_GROUP, ([1, 7], [3, -2]), strict=True)]
    sent = ranks(weighted)
    for rank, each in enumerate(sent):
        assert each.samples is not None
        each.samples.after_backward = [float(v) for v in longer[rank % 2][0]]
        x, y = (of for of, _ in longer)
        each.samples.at_step = [0.8 * a + 0.2 * b for a, b in zip(x, y, strict=True)]
    step = facts(*sent)
    assert step.ledger is not None
    weights = {line.rank: line.weight * 20 for line in step.ledger.lines}
    assert weights == pytest.approx({0: 0.8, 1: 0.2, 2: 0.8, 3: 0.2})


@pytest.mark.parametrize(
    ("applied", "reason"),
    [
        ([[9.0, 1.0, 2.0, 3.0], [5.0, 1.0, 1.0, 7.0]], "the ranks step on different gradients"),
        ([[9.0, 1.0, 2.0, 3.0]] * 2, "but not as a sum"),
    ],
)
def test_a_change_that_is_no_sum_is_not_measured(applied: list[list[float]], reason: str) -> None:
    """What the loop did to gradients of several groups is not one script's choice of weights."""
    step = facts(*ranks(applied))
    assert step.unmeasured is not None
    assert "the wrapper averages the gradients of groups of ranks, and the loop" in step.unmeasured
    assert reason in step.unmeasured
    assert judged([step]).verdict == "incomplete"


@pytest.mark.parametrize("more", [{"collectives_after": 0}, {"outside": 2}])
def test_nothing_is_claimed_of_changes_without_communication(more: dict[str, Any]) -> None:
    assert facts(*ranks(summed(0.5), **more)).run.world_size == 2


def test_groups_that_communicate_without_being_combined_are_compared() -> None:
    """An all-reduce over the ranks that DDP has averaged already changes nothing."""
    own = [list(OF_GROUP[0]), list(OF_GROUP[1])]
    sent = ranks(own, post_factor=1.0, changed=False, samples=None)
    assert [rank.rank for rank in facts(*sent).run.apart] == [1, 3]


SHARDS = {0: [1.0, 2.0, -3.0], 1: [4.0, 0.5, 1.0], 2: [5.0, -1.0, 2.0], 3: [-2.0, 3.0, 0.25]}


@pytest.mark.parametrize(("factor", "balance"), [(0.5, 1), (1, 2)])
def test_shards_are_compared_with_those_of_the_same_place(factor: float, balance: float) -> None:
    """Ranks 0 and 1 hold the two shards of one copy, ranks 2 and 3 those of the other."""
    sent = ranks(summed(factor), wrapper="fsdp2", sharded=True, norm=3.0)
    for rank, each in enumerate(sent):
        pair = [SHARDS[rank % 2], SHARDS[rank % 2 + 2]]
        applied = [factor * (a + b) for a, b in zip(*pair, strict=True)]
        each.samples = Samples(SHARDS[rank], applied, [])
        each.data_group = [0, 1] if rank < 2 else [2, 3]
    step = facts(*sent)
    assert step.run.world_size == 4
    assert step.ledger is not None
    assert step.ledger.balance == pytest.approx(balance)
    assert step.norm == pytest.approx(3.0 * 2**0.5)  # of two shards, each of which is there twice
