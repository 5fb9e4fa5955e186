"""What is written on the wire, and what the background thread works out before."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradledger.capture.async_copy import Deferred
from gradledger.capture.gradient_probe import (
    ABSENT,
    AccumulatedSample,
    added,
    common_factor,
    is_reused,
    noise,
    with_zeros,
)
from gradledger.capture.open_records import CountedMicroBatch, OpenMicroBatch, OpenStep
from gradledger.capture.open_terms import OpenTerm
from gradledger.delivery.encoding import encode
from gradledger.records import EndRecord, MicroBatch, Record, RunRecord, StepRecord, Term
from gradledger_monitor.model.losses.repeated import UNREACHED
from helpers import strategies


def said(record: Record) -> dict[str, Any]:
    line = encode(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    plain: dict[str, Any] = json.loads(line, parse_constant=pytest.fail)
    return plain


def test_what_one_optimizer_adds_to_a_shared_backward_is_not_in_the_record_of_another() -> None:
    shared = OpenMicroBatch(1, missing={"loss": "not one number"})
    one, other = (CountedMicroBatch(shared).resolve() for _ in range(2))
    one.missing["rescaled"] = "the first optimizer alone clears its gradients"
    assert other.missing == shared.missing == {"loss": "not one number"}


def test_a_record_says_what_it_is_and_nothing_that_it_does_not_know() -> None:
    assert said(StepRecord(0, 7, 1.5)) == {"type": "step", "optimizer": 0, "step": 7, "time": 1.5}
    assert said(EndRecord(2.0)) == {"type": "end", "time": 2.0}
    assert said(RunRecord("r", "n")) == {"type": "run", "v": 1, "run": "r", "name": "n"}


def test_a_loss_of_zero_is_said_and_an_unknown_one_is_not() -> None:
    both = said(StepRecord(0, 1, 1.0, [MicroBatch(loss=0.0), MicroBatch()]))
    assert both["micro_batches"] == [{"loss": 0.0}, {}]


@pytest.mark.parametrize(
    ("value", "word"),
    [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")],
)
def test_what_json_cannot_say_is_spelled(value: float, word: str) -> None:
    assert said(StepRecord(0, 1, 1.0, norm=value))["norm"] == word


@given(strategies.step_records)
def test_every_step_is_one_line_of_strict_json(record: StepRecord) -> None:
    said(record)


def test_a_configuration_of_any_objects_can_be_written() -> None:
    config = {"path": object, "nested": {"of": (1, 2)}, "nan": math.nan}
    told = said(RunRecord("r", "n", config=config))["config"]
    assert told == {"path": str(object), "nested": {"of": [1, 2]}, "nan": "NaN"}


def test_a_window_in_which_nothing_was_seen_gives_reasons() -> None:
    record = OpenStep(0, 1, 1.0, []).resolve()
    assert record.post_factor is None
    assert record.norm is None
    assert "post_factor" in record.missing


def test_what_hooks_of_the_script_scale_in_backward_is_no_factor_of_a_schedule() -> None:
    """Tensor parallelism in stages of a pipeline communicates in backward, too."""
    own, scaled = Deferred.of([1.0, 2.0, 3.0, 4.0]), Deferred.of([0.5, 1.0, 1.5, 2.0])
    first = CountedMicroBatch(OpenMicroBatch(1), sample_own=own, sample_after=scaled)
    second = CountedMicroBatch(OpenMicroBatch(2), fresh=False, sample_before=scaled)
    step = OpenStep(0, 1, 1.0, [first, second])
    step.fields["pipeline"] = True
    assert step.resolve().micro_batches[1].rescaled is None


@pytest.mark.parametrize("combined", [False, True])
def test_an_own_step_left_the_gradients_if_they_are_those_from_before_it(combined: bool) -> None:
    """Where it may combine the ranks, too, the sample at the step is one from after it."""
    begun, ended = Deferred.of([1.0, 2.0, 3.0, 4.0]), Deferred.of([0.5, 1.0, 1.5, 2.0])
    last = CountedMicroBatch(OpenMicroBatch(1), fresh=True, sample_after=begun)
    step = OpenStep(0, 1, 1.0, [last], hooked="the step may change them")
    step.sample_at_step = step.sample_after_own_step = begun
    if combined:
        step.sample_before_step, step.sample_at_step = begun, ended
        step.sample_after_own_step, step.may_be_combined = ended, True
    record = step.resolve()
    assert record.post_factor == (None if combined else 1.0)
    assert ("post_factor" in record.missing) is combined


def test_a_term_that_backward_never_reached_gives_a_reason() -> None:
    term = OpenTerm("NllLossBackward0", "mean", tokens=3).resolve()
    assert (term.tokens, term.weight) == (3, None)
    assert term.missing == {"weight": UNREACHED}


def test_a_mean_over_nothing_has_no_weight() -> None:
    term = Term("NllLossBackward0", "mean", tokens=0)
    assert said(StepRecord(0, 1, 1.0, [MicroBatch(terms=[term])]))["micro_batches"] == [
        {"terms": [{"kind": "NllLossBackward0", "reduction": "mean", "tokens": 0}]}
    ]


values = st.lists(
    st.floats(1e-3, 1e3) | st.floats(-1e3, -1e-3) | st.just(0.0), min_size=1, max_size=20
)


@given(values, st.floats(1e-4, 1e4))
def test_one_factor_is_found_whatever_the_gradients(before: list[float], factor: float) -> None:
    found = common_factor(before, [b * factor for b in before], 1e-3)
    if any(before):
        assert found == pytest.approx(factor, rel=1e-6)
    else:
        assert found == "all sampled gradients are zero"


@given(values)
def test_gradients_that_were_zeroed_have_a_factor_of_zero(before: list[float]) -> None:
    assert common_factor(before, [0.0] * len(before), 1e-3) in (
        0.0,
        "all sampled gradients are zero",
    )


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ([1.0, 2.0], [1.0], "the set of gradients changed"),
        ([0.0, 0.0], [0.0, 0.0], "all sampled gradients are zero"),
        ([1.0, 2.0, 3.0], [2.0, 4.0, 5.0], "not scaled by one number"),
        ([1.0, 1.0], [1.0, -1.0], "not scaled by one number"),
        ([1.0, 0.0, 2.0], [2.0, 3.0, 4.0], "not scaled by one number"),
    ],
)
def test_without_one_factor_there_is_a_reason(
    before: list[float], after: list[float], reason: str
) -> None:
    found = common_factor(before, after, 1e-3)
    assert isinstance(found, str)
    assert reason in found


def test_gradients_that_were_absent_are_zeros_of_the_sample() -> None:
    gradients = [torch.ones(2), torch.zeros(3), torch.ones(1)]
    sample = Deferred.of([1.0, 2.0, 3.0])
    marks = [(1, 0), ABSENT, (2, 0)]
    filled = with_zeros(sample, marks, gradients)
    assert filled.values() == [1.0, 2.0, 0.0, 0.0, 0.0, 3.0]
    assert with_zeros(sample, marks, [*gradients[:2], torch.ones(9)]) is sample
    assert (
        with_zeros(sample, [(1, 0), ABSENT, (2, 0)], [gradients[0], None, gradients[2]]) is sample
    )


def test_the_noise_of_equal_micro_batches_is_that_of_their_sum() -> None:
    ends = [AccumulatedSample([1.0, 2.0], True, False), AccumulatedSample([2.0, 4.0], False, False)]
    assert noise(ends, added(ends)) == [pytest.approx(4 + 16), pytest.approx(4 + 16)]
    assert added(ends[:1]) == []


def test_the_noise_of_a_micro_batch_is_not_taken_from_what_ranks_have_combined() -> None:
    ends = [
        AccumulatedSample([1.0, 2.0], True, False),
        AccumulatedSample([20.0, 40.0], False, True),
    ]
    assert noise(ends, added(ends)) == [pytest.approx(4 + 16), pytest.approx(400 + 1600)]
    combined = [AccumulatedSample(e.values, e.fresh, True) for e in ends]
    assert noise(combined, added(combined)) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1.0, -2.0, 0.0], [1.0, -2.0, 0.0], True),
        ([1.0, -2.0, 0.0], [0.25, -0.5, 0.0], True),  # clipped
        ([1.0, -2.0, 0.0], [-1.0, 2.0, 0.0], False),  # the step is taken back
        ([1.0, -2.0, 0.0], [0.5, -1.0, 0.5], False),
        ([1.0, -2.0, 0.0], [0.5, -2.0, 0.0], False),
        ([1.0, 1.0], [0.5, 0.5], False),  # a constant that the script set
        ([1.0], [0.5], False),
        ([1.0], [1.0], True),
        ([0.0, 0.0], [0.0, 0.0], False),
        ([1.0, -2.0], [0.0, 0.0], False),
        ([1.0, -2.0], [math.nan, math.nan], False),
    ],
)
def test_gradients_are_reused_if_they_are_the_last_ones_up_to_a_positive_factor(
    before: list[float], after: list[float], expected: bool
) -> None:
    assert is_reused(before, after, 1e-3) is expected
