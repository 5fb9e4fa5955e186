"""Ranks whose optimizers share out one model, as in ZeRO by hand: what their gradients show."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradledger.records import Event, Samples, StepRecord
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import accused, facts, judged, record, term

GRADIENTS = ([1.0, -2.0, 0.5, 3.0, 1.5, -1.0, 2.0, 0.25], [3.0, 1.0, -0.25, 1.0, 0.5, 2.0, -1, 4.0])
HALVES = (range(4), range(4, 8))  # the coordinates that each rank holds


def held(rank: int, values: list[float]) -> list[float]:
    return [v if i in HALVES[rank] else math.nan for i, v in enumerate(values)]


def step(
    applied: list[float] | tuple[list[float], list[float]],
    number: int = 1,
    model: tuple[float, float] = (7.0, 7.0),
    **more: Any,
) -> StepFacts:
    """Two ranks of 10 tokens, each with its half of ``applied``."""
    of_ranks = applied if isinstance(applied, tuple) else (applied, applied)
    return facts(*(rank(r, number, of_ranks[r], model[r], **more) for r in range(2)))


def rank(index: int, number: int, applied: list[float], model: float, **more: Any) -> StepRecord:
    sent: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 2}
    sent |= {"changed": True, "norm": 3.0 + index, "shared_model": model, **more}
    sent["shares"] = Samples(list(GRADIENTS[index]), held(index, applied))
    return record([term(10, 1 / 10)], number, **sent)


def summed(factor: float) -> list[float]:
    return [factor * (a + b) for a, b in zip(*GRADIENTS, strict=True)]


OF_OWNERS = [*GRADIENTS[0][:4], *GRADIENTS[1][4:]]


def balance(one: StepFacts) -> float | None:
    return None if one.ledger is None else one.ledger.balance


def finding(steps: list[StepFacts], rule: str) -> Finding:
    return next(f for f in judged(steps).findings if f.rule == rule)


@pytest.mark.parametrize("factor", [0.5, 1.0, 0.25])
def test_the_sum_over_the_ranks_is_read_from_the_shares(factor: float) -> None:
    one = step(summed(factor))
    assert balance(one) == pytest.approx(2 * factor)
    assert one.norm == pytest.approx(5.0)  # of both halves
    assert list(accused(judged([one, step(summed(factor), 2)]))) == (
        [] if factor == 0.5 else ["reduction.world_size"]
    )


def test_each_share_on_the_gradients_of_its_holder_loses_those_of_the_others() -> None:
    steps = [step(OF_OWNERS, number, sync="none", changed=False) for number in range(1, 7)]
    reported = finding(steps, "ddp.never_synced")
    assert "all ranks took over each parameter from one of them (ranks 0, 1)" in reported.summary


def test_some_parameters_left_out_of_the_reduction_are_named() -> None:
    applied = [*summed(0.5)[:4], *GRADIENTS[1][4:]]
    reported = finding([step(applied)], "ddp.replica_drift")
    assert "50.0% of the sampled coordinates are stepped on" in reported.summary


def test_models_that_differ_are_not_shared_out() -> None:
    one = step(OF_OWNERS, model=(7.0, 8.0))
    assert one.all_reduce is None or not one.all_reduce.of_owners
    assert one.ledger is None


@pytest.mark.parametrize(
    "applied",
    [
        pytest.param([1.0, 2.0, -3.0, 4.0, 1.0, 3.0, 9.0, 2.0], id="no gradients explain it"),
        pytest.param([math.nan] * 8, id="nothing that is held"),
    ],
)
def test_other_values_leave_it_open(applied: list[float]) -> None:
    assert step(applied).ledger is None


def test_collectives_inside_backward_may_have_combined_what_was_sampled_after_it() -> None:
    records = [rank(index, 1, summed(0.5), 7.0) for index in range(2)]
    for each in records:
        each.micro_batches[0].collectives = 3
    assert facts(*records).ledger is None
    for each in records:
        each.own_shares = True  # sampled before hooks that may combine them
    one = facts(*records)
    assert balance(one) == pytest.approx(1)
    assert accused(judged([one])) == {}
    assert judged([one]).coverage["ddp.replica_drift"] == "ok"


def test_each_rank_that_clips_its_share_by_the_norm_of_it_is_named() -> None:
    records = []
    for index, norm in enumerate((1.0, 4.0)):
        clipped = [v * min(1.0, 0.5 / norm) for v in summed(0.5)]
        sent = rank(index, 1, clipped, 7.0)
        sent.events = [Event("clip_norm", 1, norm=norm, limit=0.5)]
        records.append(sent)
    assert finding([facts(*records)], "clip.local_norm").severity == "error"
