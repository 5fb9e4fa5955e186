"""The order of a clip and of a division of the gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from gradledger.records import Event, Op, StepRecord
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term


def clipped(
    divisor: float, *, limit: float = 1.0, norm: float = 8.0, k: int = 4, **event: Any
) -> StepRecord:
    """K sums over 10 tokens, clipped, and divided by a number after the clip."""
    clip = Event("clip_norm", **{"after": k, "limit": limit, "norm": norm, "factor": 1.0, **event})
    coefficient = min(1.0, limit / (norm + 1e-6)) if limit < math.inf else 1.0
    terms = [term(10, 1 / 10 if divisor == k else 1.0, "sum") for _ in range(k)]
    return record(terms, post_factor=coefficient * (clip.factor or 1.0) / divisor, events=[clip])


def finding_in(*windows: StepRecord) -> Finding | None:
    findings = judged([facts(window) for window in windows]).findings
    return next((f for f in findings if f.rule == "clip.before_division"), None)


def test_a_clip_of_a_sum_is_reported_with_the_norm_that_is_applied() -> None:
    finding = finding_in(clipped(4))
    assert finding is not None
    assert (finding.severity, finding.title) == (
        "warning",
        "Gradients are clipped before they are divided by K = 4",
    )
    assert finding.summary == (
        "The clip to 1 ran on gradients with a norm of 8. The loop divides them by K = 4 after it, "
        "so the applied norm is at most 0.25. Divided first, the norm is 2, which the clip reduces "
        "to 1."
    )
    by_tokens = finding_in(clipped(40))
    assert by_tokens is not None
    assert by_tokens.summary == (
        "The clip to 1 ran on gradients with a norm of 8. The loop divides them by the 40 elements "
        "after it, so the applied norm is at most 0.025. Divided first, the norm is 0.2, which the "
        "clip leaves unchanged."
    )
    assert by_tokens.evidence["divisor"] == 40


@pytest.mark.parametrize(
    "window",
    [
        clipped(4, norm=0.9),  # it leaves the gradients unchanged
        clipped(4, limit=math.inf),
        clipped(1),  # nothing divides them
        clipped(5),  # by a number that is no count
        clipped(4, factor=None),
        clipped(4, after=3),
        clipped(4, limit=4.0),  # 1 * K
        clipped(40, limit=40.0),
        clipped(4, limit=0.4),  # 0.1 * K
        clipped(4, own=False),
        clipped(1, k=1),
    ],
)
def test_a_clip_that_the_division_does_not_change_or_that_contains_it_is_left_alone(
    window: StepRecord,
) -> None:
    assert finding_in(window) is None


def test_ranks_that_divide_their_average_by_what_each_counts_are_reported() -> None:
    ranks = [clipped(40)] * 2
    for each in ranks:
        each.sync, each.wrapper = "averaged", "ddp"
    (finding,) = (f for f in judged([facts(*ranks)]).findings if f.rule == "clip.before_division")
    assert finding.title == (
        "Gradients are clipped before they are divided by the 40 elements of rank 0"
    )


def test_a_division_before_the_clip_is_right() -> None:
    divided = clipped(1)
    divided.events[0].factor = 1 / 4
    divided.post_factor = 1 / 4 / 8
    assert finding_in(divided) is None


def test_several_clips_are_left_alone() -> None:
    twice = clipped(4)
    twice.events.append(Event("clip_norm", 4, limit=1.0, norm=1.0, factor=1.0))
    assert finding_in(twice) is None


def test_the_scale_of_a_grad_scaler_is_no_count() -> None:
    """As many tokens as the scale: the clip comes before ``unscale_``, which has its own rule."""
    window = clipped(40)
    assert finding_in(window) is not None
    for micro_batch in window.micro_batches:
        micro_batch.scale = 40.0
    assert finding_in(window) is None


def late_clips(
    *norms: float | None,
    limit: float = 1.0,
    fresh: bool = True,
    extra: int = 0,
    op: Op = "clip_norm",
) -> list[str]:
    """The severities of ``clip.after_step`` in windows that begin with a clip; the first has none.

    ``extra``: also this many clips after the backward.
    """
    steps = [facts(record([term(8, 1 / 8)], 1))]
    for number, norm in enumerate(norms, 2):
        clips = [Event(op, 0, limit=limit, norm=norm)]
        clips += [Event(op, 1, limit=limit, norm=norm)] * extra
        sent = record([term(8, 1 / 8)], number, events=clips)
        sent.micro_batches[0].fresh = fresh
        steps.append(facts(sent))
    return [f.severity for f in judged(steps).findings if f.rule == "clip.after_step"]


def test_clips_after_the_step_are_reported_if_they_change_what_no_step_uses() -> None:
    assert late_clips(0.5, 2.0, 0.5) == ["warning"]
    assert late_clips(0.5, 2.0) == []
    assert late_clips(0.5, 0.5, 0.5, 0.5) == []
    assert late_clips(2.0, 2.0, 2.0, limit=math.inf) == []
    assert late_clips(2.0, 2.0, 2.0, fresh=False) == []
    assert late_clips(2.0, 2.0, 2.0, extra=1) == []


def test_late_clips_by_value_are_information() -> None:
    late = partial(late_clips, None, None, None, op="clip_value")
    assert late() == ["info"]
    assert late(extra=1) == late(fresh=False) == late(limit=math.inf) == []
