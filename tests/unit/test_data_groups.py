"""Which ranks of a step are data-parallel members: stages of a pipeline without a loss are none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradledger.records import MicroBatch, Samples, StepRecord
from helpers.facts import facts, judged, record, term

NO_LOSS = "stage 0 of a pipeline of 2 has no loss"
FAIR = [term(10, 1 / 40), term(30, 1 / 40)]


def stage(pipeline: list[int], **more: Any) -> StepRecord:
    """A stage before the last one."""
    sent = record([], pipeline=pipeline, **more)
    sent.micro_batches = [
        MicroBatch(number, fresh=number == 1, relayed=True, missing={"terms": NO_LOSS})
        for number in (1, 2)
    ]
    return sent


def last(pipeline: list[int], **more: Any) -> StepRecord:
    """The stage with the loss."""
    return record(FAIR, pipeline=pipeline, **more)


def test_the_step_of_a_pipeline_is_that_of_the_stage_with_the_loss() -> None:
    step = facts(stage([0, 1], norm=3.0), last([0, 1], norm=4.0, sync="unknown"))
    assert (step.run.world_size, list(step.records), step.unmeasured) == (1, [1], None)
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((40, 1))
    assert step.norm == 5.0  # over both stages


def test_the_verdict_names_the_stages_that_are_not_evaluated() -> None:
    pairs = [[0, 1], [2, 3]]
    one = [stage([0, 1]), last([0, 1])]
    two = [make(pair, sync="averaged") for pair in pairs for make in (stage, last)]
    for step, ranks in ((facts(*one), "rank 0"), (facts(*two), "ranks 0, 2")):
        coverage = judged([step]).coverage
        assert coverage["reduction.token_weights_unequal"] == (
            "ok: equal weights: cross entropy; "
            f"not evaluated: the gradients of {ranks}, without a loss"
        )
    alone = judged([facts(*one)]).coverage["ddp.never_synced"]
    assert alone == "not_applicable: no other rank trains the same part"


def test_the_norm_is_unknown_without_that_of_each_stage() -> None:
    assert facts(stage([0, 1], norm=None), last([0, 1])).norm is None
    norm = facts(stage([0, 1], norm=math.nan), last([0, 1])).norm
    assert norm is not None
    assert math.isnan(norm)


def test_each_pipeline_is_one_member() -> None:
    pairs = [[0, 1], [2, 3]]
    step = facts(*[make(pair, sync="averaged") for pair in pairs for make in (stage, last)])
    assert (step.run.world_size, list(step.records)) == (2, [1, 3])
    assert step.ledger is not None
    assert step.ledger.tokens == 80


def test_a_missing_rank_is_named_unless_it_has_no_loss() -> None:
    assert facts(last([0, 1]), last([0, 1]), world_size=3).missing_ranks
    assert facts(stage([0, 1]), world_size=2).missing_ranks == "no record of rank 1 arrived"
    only_stages = [stage(pair, data_group=group) for pair, group in (([0, 1], [0, 2]),) * 2]
    assert facts(*only_stages, world_size=4).missing_ranks == "no record of rank 2, 3 arrived"
    step = facts(last([0, 1]), stage([0, 1]), last([2, 3]), world_size=4)
    assert step.missing_ranks is None  # rank 3 is a stage of rank 2's pipeline


@pytest.mark.parametrize(("factor", "measured"), [(0.5, True), (1, False), (0.25, False)])
def test_copies_of_a_stage_should_have_the_factor_of_the_last(
    factor: float, measured: bool
) -> None:
    """Of two pipelines by hand: what multiplies the sum of the first stages' gradients."""
    own = ([1.0, -2.0, 0.5, 4.0], [3.0, 1.0, -0.25, 1.0])
    more: dict[str, Any] = {"sync": "unknown", "collectives_after": 2, "post_factor": None}
    sent = []
    for gradients in own:
        of_stages = [
            Samples(gradients, [c * sum(pair) for pair in zip(*own, strict=True)])
            for c in (factor, 0.5)
        ]
        sent += [stage([], samples=of_stages[0], **more), last([], samples=of_stages[1], **more)]
    coverage = judged([facts(*sent)]).coverage["ddp.replica_drift"]
    reason = f"Ranks 0, 2 hold no loss, and multiply the sum of their gradients by {factor}"
    assert coverage.startswith("ok" if measured else f"not_measured: {reason}")


def test_an_optimizer_of_earlier_stages_alone_has_no_loss() -> None:
    """One optimizer for each stage: the loss belongs to the window of another one."""
    step = facts(stage([0, 1]), stage([0, 1]))
    assert (step.run.world_size, step.unmeasured) == (1, NO_LOSS)


def test_gradients_that_are_passed_in_on_every_rank_are_no_pipeline_of_two() -> None:
    step = facts(stage([]), record(FAIR, sync="averaged"))
    assert (step.run.world_size, list(step.records)) == (1, [1])  # written by hand


def test_a_group_has_a_rank_of_which_a_record_arrived() -> None:
    assert list(facts(stage([0], data_group=[7])).records) == [0]
    step = facts(stage([0]), last([2]), last([1]), world_size=4)  # each in the other's pipeline
    assert list(step.records) == [1, 2]


def test_a_schedule_that_runs_twice_scales_the_first_micro_batches_twice() -> None:
    sent = record([term(10, 1 / 10)] * 4, pipeline=[0, 1], post_factor=1 / 2)
    sent.micro_batches[2].rescaled = 1 / 2
    step = facts(stage([0, 1]), sent)
    assert step.ledger is not None
    assert step.ledger.balance == pytest.approx(2 / 4 + 2 / 2)
    assert step.ledger.misallocation == pytest.approx(1 / 6)
    sent.micro_batches[1].missing["rescaled"] = "not by one number"
    assert facts(stage([0, 1]), sent).unmeasured == "not by one number"
