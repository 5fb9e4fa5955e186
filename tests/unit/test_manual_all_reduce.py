"""Whether ranks combined their gradients by hand, and how: a few numbers, and what they prove."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradledger.records import Samples, StepRecord
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import accused, facts, judged, record, term

LEFT = ([1.0, -2.0, 0.5, 0.0], [3.0, 1.0, -0.25, 0.0])
SUM = [4.0, -1.0, 0.25, 0.0]


def step(*applied: list[float], left: Any = LEFT, **more: Any) -> StepFacts:
    """A step of ranks with the samples ``left`` after backward and ``applied`` at the step."""
    fields: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 4}
    fields |= more
    return facts(
        *(
            record([term(10, 1 / 10)], samples=Samples(before, after), **fields)
            for before, after in zip(left, applied, strict=True)
        )
    )


def scaled(factor: float) -> list[float]:
    """The sum over the ranks, times a factor."""
    return [factor * value for value in SUM]


@given(st.floats(1e-6, 1e6))
def test_one_factor_over_all_coordinates_is_found(factor: float) -> None:
    merged = step(scaled(factor), scaled(factor))
    assert merged.all_reduce_factor == pytest.approx(factor)
    assert merged.unmeasured is None
    assert merged.ledger is not None
    assert (merged.ledger.tokens, merged.ledger.balance) == pytest.approx((20, 2 * factor))


@pytest.mark.parametrize(
    ("applied", "left", "reason"),
    [
        ((scaled(1), scaled(2)), LEFT, "the ranks step on different gradients"),
        (([*SUM[:2], 1.0, 0.0],) * 2, LEFT, "were combined, but not as a sum"),
        (([0.0] * 4,) * 2, LEFT, "were combined, but not as a sum"),
        (([*SUM[:2], float("inf"), 0.0],) * 2, LEFT, "the sampled gradients are not finite"),
        ((SUM[:3], SUM), LEFT, "the ranks sampled different gradients"),
        (([4.0, 0.0],) * 2, ([1.0, 0.0], [3.0, 0.0]), "too few of the sampled gradients"),
        (([], []), ([], []), "too few of the sampled gradients"),
    ],
)
def test_samples_without_proof_leave_the_step_unmeasured_with_a_reason(
    applied: Any, left: Any, reason: str
) -> None:
    merged = step(*applied, left=left)
    assert merged.all_reduce_factor is None
    assert merged.ledger is None
    assert reason in str(merged.unmeasured)
    assert judged([merged]).verdict == "incomplete"


def test_what_cancels_between_the_ranks_may_be_off_by_the_rounding_of_its_parts() -> None:
    left = ([1.0, 2.0, 3.0, 1e4], [1.0, 2.0, 3.0, -1e4])
    merged = step(*([1.0, 2.0, 3.0, 1e-3],) * 2, left=left)
    assert merged.all_reduce_factor == pytest.approx(0.5)


def test_a_rank_that_sent_no_sample_leaves_the_step_unmeasured() -> None:
    one = record([term(10, 1 / 10)], sync="unknown", post_factor=None, collectives_after=4)
    merged = facts(replace(one, samples=Samples(LEFT[0], SUM)), one)
    assert merged.unmeasured == "rank 0: how the ranks' gradients were combined was not seen"


def ddp(norm: float, **more: Any) -> StepRecord:
    """A rank of a DDP model that ran no collective in backward, and one after it."""
    sent = record([term(10, 1 / 10)], 2, norm=norm, wrapper="ddp", sync="unknown", **more)
    sent.collectives_after = 1
    return sent


def test_a_loss_reduced_after_backward_does_not_hide_missing_synchronisation() -> None:
    assert accused(judged([facts(ddp(1.0), ddp(2.0))])) == {"ddp.never_synced": 2}


def test_equal_gradients_may_have_been_combined_and_give_no_finding() -> None:
    merged = facts(ddp(1.0), ddp(1.0))
    assert merged.unmeasured is None
    assert "ddp.never_synced" not in accused(judged([merged]))
