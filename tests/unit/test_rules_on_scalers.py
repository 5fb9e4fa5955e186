"""Windows under a GradScaler: each rule at its thresholds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gradledger.records import Event, Replaced, Resumed, Scaler, StepRecord
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term

SCALE = 1024.0
STEP, UPDATE = Event("scaler_step", 2), Event("update", 2)


def scaled(
    number: int = 1, *events: Event, scales: tuple[float, ...] = (SCALE, SCALE), **more: Any
) -> StepRecord:
    """A right window of two micro-batches; unscaled by the scaler by default."""
    step_record = record(
        [term(10, scale / 20) for scale in scales], number, post_factor=1 / scales[-1]
    )
    for micro_batch, scale in zip(step_record.micro_batches, scales, strict=True):
        micro_batch.scale, micro_batch.loss = scale, scale
    step_record.events = list(events)
    for name, value in more.items():
        setattr(step_record, name, value)
    return step_record


def finding_of(rule: str, *windows: StepRecord) -> Finding | None:
    """The finding of a rule in windows in order."""
    evaluation = judged([facts(window) for window in windows])
    return next((f for f in evaluation.findings if f.rule == f"scaler.{rule}"), None)


# ---------------------------------------------------------------------- clipped before unscale


def clip(**fields: Any) -> Event:
    return Event("clip_norm", **{"after": 2, "limit": 1.0, "factor": 1.0, **fields})


def test_a_clip_on_scaled_gradients_is_reported_with_what_it_really_leaves() -> None:
    finding = finding_of("clip_before_unscale", scaled(1, clip(norm=2048.0), STEP))
    assert finding is not None
    assert finding.summary == (
        "The clip to 1 ran before GradScaler.unscale_, on gradients multiplied by 1,024. It "
        "measured a norm of 2,048, which is 2 without the scale. After unscaling, the norm is at "
        "most 0.000977."
    )
    unseen = finding_of("clip_before_unscale", scaled(1, clip(limit=0.0), STEP))
    assert unseen is not None
    assert unseen.summary == (
        "The clip to 0 ran before GradScaler.unscale_, on gradients multiplied by 1,024. After "
        "unscaling, the norm is at most 0."
    )


@pytest.mark.parametrize(
    ("event", "is_reported"),
    [
        (clip(factor=None), True),
        (clip(after=1), True),
        (clip(after=0), False),
        (clip(limit=None), False),
        (clip(limit=math.inf), False),
        (clip(factor=2 / SCALE), False),
        (clip(factor=2.1 / SCALE), True),
        (clip(own=False), False),
        (Event("clip_value", 2, limit=1.0), True),
    ],
)
def test_a_clip_counts_where_it_limits_gradients_that_still_carry_the_scale(
    event: Event, is_reported: bool
) -> None:
    assert (finding_of("clip_before_unscale", scaled(1, event, STEP)) is not None) is is_reported


@pytest.mark.parametrize(("scale", "is_reported"), [(1.0, False), (10.0, False), (11.0, True)])
def test_a_limit_of_a_tenth_of_the_scale_is_scaled_too(scale: float, is_reported: bool) -> None:
    window = scaled(1, clip(factor=None), STEP, scales=(scale, scale))
    assert (finding_of("clip_before_unscale", window) is not None) is is_reported


def by_a_constant(scale: float, *events: Event, factor: float | None = None) -> StepRecord:
    """A window without a GradScaler: a constant multiplies the loss, and divides the gradients."""
    losses = [term(n, scale / 20, coefficient=scale) for n in (10, 10)]
    return record(losses, events=list(events), post_factor=1 / scale if factor is None else factor)


CLIPPED = 1 / SCALE / 70.0  # a norm of 70 to 1, and the division


@pytest.mark.parametrize(
    ("scale", "event", "factor", "is_reported"),
    [
        (SCALE, clip(norm=70.0), CLIPPED, True),
        (SCALE, clip(norm=0.5), None, True),  # it compares with the wrong norm
        (SCALE, clip(norm=70.0, factor=1 / SCALE), CLIPPED, False),  # after the division
        (SCALE, clip(norm=70.0, factor=None), CLIPPED, False),
        (SCALE, clip(norm=70.0, limit=SCALE), None, False),  # a limit that is multiplied, too
        (SCALE, clip(norm=70.0, limit=math.inf), None, False),
        (SCALE, clip(norm=70.0), 1 / 70.0, False),  # a weight of the loss, that is not divided out
        (8.0, clip(norm=70.0), 1 / 8 / 70.0, False),
        (20.0, clip(norm=70.0), 1 / 20 / 70.0, False),  # the tokens of the window
    ],
)
def test_a_clip_before_a_static_scale_is_divided_out_is_reported(
    scale: float, event: Event, factor: float | None, is_reported: bool
) -> None:
    finding = finding_of("clip_before_unscale", by_a_constant(scale, event, factor=factor))
    assert (finding is not None) is is_reported
    if finding is not None and event.norm == 70.0:
        assert finding.summary == (
            "The clip to 1 ran on gradients multiplied by 1,024, by which the loop divides them "
            "after it. It measured a norm of 70, which is 0.06836 without the scale. After the "
            "division, the norm is at most 0.000977."
        )


def test_a_clip_by_value_before_a_static_scale_is_divided_out_is_reported() -> None:
    early = Event("clip_value", 2, limit=0.1, factor=1.0, rest=1 / SCALE)
    finding = finding_of("clip_before_unscale", by_a_constant(SCALE, early))
    assert finding is not None
    assert finding.summary.endswith("each gradient value is at most 9.77e-05.")
    late = Event("clip_value", 2, limit=0.1, factor=1 / SCALE, rest=1.0)
    assert finding_of("clip_before_unscale", by_a_constant(SCALE, late)) is None


def test_a_limit_of_values_that_is_multiplied_by_the_scale_is_right() -> None:
    limit = 0.02 * SCALE  # far below the scale, as a limit of single values is
    early = Event("clip_value", 2, limit=limit, factor=1.0, rest=1 / SCALE)
    assert finding_of("clip_before_unscale", by_a_constant(SCALE, early)) is None


def test_after_unscale_any_clip_is_right() -> None:
    assert finding_of("clip_before_unscale", scaled(1, Event("unscale", 2), clip(), STEP)) is None


# ---------------------------------------------------------------------- the scale itself


def falling(*scales: float) -> Finding | None:
    return finding_of("collapse", *(scaled(n, scales=(s, s)) for n, s in enumerate(scales, 1)))


def test_a_scale_below_one_has_collapsed_and_at_a_thirty_second_it_is_an_error() -> None:
    assert falling(1024.0, 1.0) is None
    for scale, severity in ((0.5, "warning"), (0.0625, "warning"), (0.03125, "error")):
        finding = falling(1024.0, scale)
        assert finding is not None and finding.severity == severity


def test_a_scale_that_fell_under_a_loss_of_nan_is_explained_by_the_loss() -> None:
    for loss, is_stated in ((math.nan, True), (math.inf, False), (2.0, False)):
        steps = [scaled(n, scales=(s, s)) for n, s in enumerate((1024.0, 64.0, 4.0, 0.25), 1)]
        for step in steps[1:]:
            step.skipped, step.micro_batches[-1].loss = True, loss
        finding = finding_of("collapse", *steps)
        assert finding is not None
        text = "The loss was NaN at 3 of 3 skipped steps, which no loss scale changes"
        assert (text in finding.summary) is is_stated


def test_a_small_initial_scale_has_collapsed_only_at_a_quarter_of_it() -> None:
    assert falling(0.5, 0.25) is None
    assert falling(0.5, 0.126) is None
    assert falling(0.5, 0.125) is not None


def test_the_scale_is_that_of_the_last_backward() -> None:
    assert finding_of("collapse", scaled(1), scaled(2, scales=(0.5, SCALE))) is None
    assert finding_of("collapse", scaled(1), scaled(2, scales=(SCALE, 0.5))) is not None
    assert finding_of("collapse", scaled(1), scaled(2, scales=(4.0, 0.5, 2.0))) is None


@pytest.mark.parametrize(
    ("scale", "left", "is_reported"),
    [
        (4.0, 1 / 4, True),
        (3.9, 1 / 3.9, False),
        (SCALE, 1 / SCALE, True),
        (SCALE, 1.01 / SCALE, True),
        (SCALE, 1.03 / SCALE, False),
        (SCALE, 0.97 / SCALE, False),
        (SCALE, 1.0, False),
    ],
)
def test_what_is_left_of_the_scale_separates_one_division_from_two(
    scale: float, left: float, is_reported: bool
) -> None:
    window = scaled(1, STEP, scales=(scale, scale), post_factor=left / scale)
    assert (finding_of("double_unscale", window) is not None) is is_reported


@pytest.mark.parametrize(
    ("left", "is_reported"), [(1.0, False), (1.99, False), (2.0, True), (8.0, True)]
)
def test_a_step_beside_the_scaler_is_reported_where_the_scale_is_still_there(
    left: float, is_reported: bool
) -> None:
    beside = scaled(1, UPDATE, post_factor=left / SCALE)
    assert (finding_of("step_bypassed", beside) is not None) is is_reported
    assert finding_of("step_bypassed", scaled(1, STEP, UPDATE, post_factor=left / SCALE)) is None


@pytest.mark.parametrize(
    ("event", "is_bounded"),
    [
        (Event("clip_norm", 2, limit=1.0, norm=32000.0), True),
        (Event("clip_value", 2, limit=1.0), True),
        (Event("clip_norm", 2, limit=1.0, norm=0.5), False),
        (Event("clip_norm", 1, limit=1.0, norm=32000.0), False),
        (Event("clip_norm", 2, limit=math.inf, norm=32000.0), False),
    ],
)
def test_a_clip_on_scaled_gradients_bounds_what_steps_beside_the_scaler(
    event: Event, is_bounded: bool
) -> None:
    finding = finding_of("step_bypassed", scaled(1, event, UPDATE, post_factor=1.0))
    assert finding is not None
    assert ("at most that limit" in finding.summary) is is_bounded
    assert ("that much too large" in finding.summary) is not is_bounded


def test_nothing_is_stated_of_unscaling_that_does_not_take_place() -> None:
    stepped = finding_of("clip_before_unscale", scaled(1, clip(norm=2048.0), STEP, UPDATE))
    assert stepped is not None and "After unscaling, the norm is at most" in stepped.summary
    clipped = scaled(1, clip(norm=2048.0), UPDATE, post_factor=1 / 2048)
    bypassed = finding_of("clip_before_unscale", clipped)
    assert bypassed is not None and "Nothing unscales them before the step" in bypassed.summary
    by_hand = scaled(1, clip(norm=2048.0), UPDATE, post_factor=1 / 2048 / SCALE)
    divided = finding_of("clip_before_unscale", by_hand)
    assert divided is not None and "Without the scale, the norm is at most" in divided.summary


@pytest.mark.parametrize("factor", [None, math.nan, math.inf])
def test_without_a_sample_nothing_is_stated_of_what_is_left(factor: float | None) -> None:
    answers = judged([facts(scaled(1, UPDATE, post_factor=factor))]).coverage
    assert answers["scaler.step_bypassed"] == "not_measured: no gradient sample"
    assert answers["scaler.double_unscale"] == "not_measured: no gradient sample"


@pytest.mark.parametrize(
    ("changes", "is_reported"),
    [
        ({}, True),
        ({"norm": 1e-9}, False),
        ({"skipped": True}, False),
        ({"post_factor": 0.0}, False),
    ],
)
def test_a_norm_of_zero_under_weights_is_reported_unless_the_loop_made_it_so(
    changes: dict[str, Any], is_reported: bool
) -> None:
    window = scaled(1, STEP, **{"norm": 0.0, **changes})
    assert (finding_of("all_grads_zero", window) is not None) is is_reported
    weightless = scaled(1, STEP, norm=0.0)
    for micro_batch in weightless.micro_batches:
        micro_batch.terms[0].weight = 0.0
    assert finding_of("all_grads_zero", weightless) is None


# ---------------------------------------------------------------------- step and update


def test_windows_between_which_no_update_ran_are_reported() -> None:
    finding = finding_of("missing_update", scaled(1, STEP), scaled(2, STEP))
    assert finding is not None
    assert (finding.title, finding.first_step) == ("GradScaler.update() is not called", 2)
    assert finding_of("missing_update", scaled(1, STEP, UPDATE), scaled(2, STEP, UPDATE)) is None
    assert finding_of("missing_update", scaled(1), scaled(2)) is None  # the scaler steps nothing
    assert (
        finding_of("missing_update", scaled(1, STEP), scaled(4, STEP)) is None
    )  # not seen: 2 and 3


def test_a_second_step_between_an_update_and_the_next_window_hides_no_update() -> None:
    second = record([], 2, events=[Event("update", 0)])
    assert finding_of("missing_update", scaled(1, STEP), second, scaled(3, STEP)) is None


def test_a_backward_without_the_scale_is_reported_where_the_scaler_steps_or_skips() -> None:
    def half(*events: Event, **more: Any) -> Finding | None:
        window = scaled(1, *events, **more)
        window.micro_batches[1].scale = None
        window.micro_batches[1].terms[0].weight = 1 / 20
        return finding_of("unscaled_backward", window)

    assert half(STEP) is not None
    assert half(skipped=True) is not None
    assert half() is None
    assert finding_of("unscaled_backward", scaled(1, STEP)) is None


def test_a_backward_that_the_loop_scales_by_hand_is_left_alone() -> None:
    window = scaled(1, STEP)
    window.micro_batches[1].scale = None
    assert finding_of("unscaled_backward", window) is None
    by_norm = scaled(1, STEP)
    by_norm.micro_batches[1].scale = by_norm.micro_batches[1].terms[0].weight = None
    by_norm.micro_batches[0].sample_norm = 3.0 * SCALE
    by_norm.micro_batches[1].sample_norm = 2.0 * SCALE
    assert finding_of("unscaled_backward", by_norm) is None
    by_norm.micro_batches[1].sample_norm = 2.0
    assert finding_of("unscaled_backward", by_norm) is not None


@pytest.mark.parametrize(
    ("weight", "left", "is_reported"),
    [
        (1 / 20, 1.0, True),
        (1 / 10, 1.0, True),  # and the division by K is missing
        (SCALE / 20, 1.0, False),  # scaled by hand
        (0.3 / 20, 1.0, False),  # no count: a weight may be part of it
        (1 / 20, SCALE, False),  # and multiplied by the scale after backward
    ],
)
def test_a_scaler_that_divides_unscaled_gradients_is_reported(
    weight: float, left: float, is_reported: bool
) -> None:
    window = of_unscaled(weight, post_factor=left / SCALE)
    assert (finding_of("unscaled_backward", window) is not None) is is_reported


@pytest.mark.parametrize(
    ("gradient", "is_reported"),
    [
        (0.001, True),
        (0.001 * SCALE, False),  # with a weight of 0.001, scaled by hand
    ],
)
def test_another_loss_is_unscaled_if_it_weighs_no_more_than_one(
    gradient: float, is_reported: bool
) -> None:
    window = scaled(1, STEP)
    other = window.micro_batches[1]
    other.scale, other.terms[0].kind = None, "MseLossBackward0"
    other.terms[0].weight = gradient / (other.terms[0].tokens or 1)
    assert (finding_of("unscaled_backward", window) is not None) is is_reported
    other.terms[0].penalty = True
    assert finding_of("unscaled_backward", window) is None


def of_unscaled(weight: float, unused: bool = True, **more: Any) -> StepRecord:
    window = scaled(1, STEP, scaler=Scaler(1, SCALE, unused=unused), **more)
    for micro_batch in window.micro_batches:
        micro_batch.scale, micro_batch.terms[0].weight = None, weight
    return window


def test_unscaled_losses_may_have_gradients_that_are_scaled() -> None:
    """By a hook below the loss, or as products with cached gradients of a scaled loss."""
    factor = 1 / SCALE
    assert finding_of("unscaled_backward", of_unscaled(1 / 20, False, post_factor=factor)) is None
    products = of_unscaled(1 / 20, post_factor=factor)
    for micro_batch in products.micro_batches:
        micro_batch.terms[0].kind, micro_batch.terms[0].undivided = "DotBackward0", True
    assert finding_of("unscaled_backward", products) is None
    body = scaled(1, STEP)  # of a loss on detached features, whose gradients go on
    body.micro_batches[1].scale, body.micro_batches[1].terms = None, []
    assert finding_of("unscaled_backward", body) is None


@pytest.mark.parametrize(
    ("scaled_by", "beside", "is_reported"),
    [
        (SCALE, None, True),
        (SCALE / 10, 0.1, True),  # the scaled one has a weight, and the other one has a weight
        (SCALE, SCALE, False),  # scaled by hand
        (SCALE, 1e-4 * SCALE, False),  # with a weight
        (SCALE * 45, None, True),
        (SCALE, 45.0, True),
    ],
)
def test_a_loss_that_is_added_to_a_scaled_one_is_unscaled(
    scaled_by: float, beside: float | None, is_reported: bool
) -> None:
    window = record([], 1, post_factor=1 / SCALE, scaler=Scaler(1, SCALE, unused=True))
    window.micro_batches = record(
        [
            [
                term(10, (c or 1.0) / 10, coefficient=c, head=h)
                for h, c in ((1, scaled_by), (2, beside))
            ]
        ]
    ).micro_batches
    window.events = [Event("scaler_step", 1)]
    reported = finding_of("unscaled_backward", window)
    assert (reported is not None) is is_reported
    if reported is not None:
        assert reported.title == "A loss is added to a scaled loss, and is not scaled"
        assert reported.evidence["scale"] == SCALE


@pytest.mark.parametrize(
    ("constant", "outer", "scaler_of", "is_reported"),
    [
        (45.0, None, 1, True),
        (1.0, None, 1, True),
        (45.0, None, 2, False),  # another scaler steps the other optimizer
        (64.0, None, 1, False),  # a weight of 1/16, which the loop multiplies by the scale
        (1.0, SCALE, 1, False),  # the same with a weight of 1/scale
    ],
)
def test_a_scaler_may_divide_the_gradients_of_one_of_two_optimizers_that_are_unscaled(
    constant: float, outer: float | None, scaler_of: int, is_reported: bool
) -> None:
    window = of_unscaled(constant / 20, False, post_factor=1 / SCALE)
    for micro_batch in window.micro_batches:
        micro_batch.terms[0].coefficient = constant
        micro_batch.terms[0].outer_coefficient = outer
    window.events.append(Event("scaler_step", 0, own=False, scaler=scaler_of))
    assert (finding_of("unscaled_backward", window) is not None) is is_reported
    window.micro_batches[0].missing["scale"] = "a tensor of several values was scaled"
    assert finding_of("unscaled_backward", window) is None


def test_another_loss_with_a_constant_in_front_of_it_is_unscaled() -> None:
    for constant, is_reported in ((45.0, True), (0.045 * SCALE, False)):
        window = scaled(1, STEP)
        other = window.micro_batches[1]
        other.scale, other.terms[0].kind = None, "MseLossBackward0"
        other.terms[0].weight = constant / (other.terms[0].tokens or 1)
        other.terms[0].coefficient = constant
        assert (finding_of("unscaled_backward", window) is not None) is is_reported


def test_gradients_that_are_not_finite_show_that_the_scaler_was_bypassed() -> None:
    def bypassed(*events: Event) -> Finding | None:
        return finding_of("step_bypassed", scaled(1, *events, norm=math.inf, post_factor=None))

    assert bypassed() is not None
    assert bypassed(STEP) is None
    assert bypassed(Event("unscale", 2)) is None


def test_a_scale_that_changes_inside_the_window_leaves_no_ledger() -> None:
    window = scaled(1, Event("update", 1), STEP)
    window.micro_batches[1].scale = SCALE / 2
    assert facts(window).unmeasured == "the loss scale changed between backwards of this window"
    finding = finding_of("update_per_microbatch", window)
    assert finding is not None and "different loss scales" in finding.summary


def test_a_loss_beside_a_scaled_one_may_have_a_factor_that_is_not_read() -> None:
    """Its weight shows the scale."""
    window = record(
        [[term(10, SCALE / 10, coefficient=c, head=h) for h, c in ((1, SCALE), (2, None))]],
        post_factor=1 / SCALE,
        scaler=Scaler(1, SCALE, unused=True),
    )
    window.events = [Event("scaler_step", 1)]
    assert finding_of("unscaled_backward", window) is None


def test_an_unscale_of_what_was_discarded_afterwards_is_left_alone() -> None:
    for after, fresh, is_reported in ((1, False, True), (1, True, False), (2, False, False)):
        window = scaled(1, Event("unscale", after), STEP)
        window.micro_batches[1].fresh = fresh
        assert (finding_of("unscale_mid_window", window) is not None) is is_reported
        between = "GradScaler.unscale_ ran between" in (facts(window).unmeasured or "")
        assert between is is_reported  # no one factor holds for all gradients of the sum


def guarded(*events: Event) -> Finding | None:
    """A first micro-batch that was discarded, and a second one that was stepped on."""
    window = scaled(1, *events)
    window.micro_batches[1].fresh = True
    return finding_of("missing_update", window)


def test_a_window_that_is_abandoned_after_a_norm_that_is_not_finite_needs_an_update_too() -> None:
    bad = Event("clip_norm", 1, limit=1.0, norm=math.inf)
    finding = guarded(bad, STEP, UPDATE)
    assert finding is not None
    assert finding.title == "A window is abandoned without GradScaler.update()"
    assert finding.evidence["abandoned_after"] == [1]
    assert guarded(bad, Event("update", 1), STEP, UPDATE) is None
    assert guarded(Event("clip_norm", 1, limit=1.0, norm=3.0), STEP, UPDATE) is None
    assert (
        finding_of("missing_update", scaled(1, bad, STEP, UPDATE)) is None
    )  # nothing was discarded


def test_an_update_or_another_scale_inside_the_window_is_reported_in_its_own_words() -> None:
    early = finding_of("update_per_microbatch", scaled(1, Event("update", 1), STEP))
    assert early is not None
    assert early.summary.startswith("GradScaler.update() ran after micro-batch 1 of 2,")
    changed = finding_of("update_per_microbatch", scaled(1, STEP, UPDATE, scales=(1024.0, 512.0)))
    assert changed is not None
    assert (
        changed.summary == "The micro-batches of the window have different loss scales: 1,024, 512."
    )
    assert finding_of("update_per_microbatch", scaled(1, STEP, UPDATE)) is None


# ---------------------------------------------------------------------- scalers and skips


def replaced(*scalers: Scaler | None) -> Finding | None:
    return finding_of(
        "reset", *(scaled(n, STEP, UPDATE, scaler=s) for n, s in enumerate(scalers, 1))
    )


@pytest.mark.parametrize(
    ("scale", "is_reported"),
    [(64.0, True), (512.0, False), (2048.0, False), (3000.0, True), (500.0, True)],
)
def test_a_new_scaler_is_reported_unless_it_goes_on_at_the_old_scale(
    scale: float, is_reported: bool
) -> None:
    assert (replaced(Scaler(1, 1024.0), Scaler(2, scale)) is not None) is is_reported
    assert replaced(Scaler(1, 1024.0), Scaler(1, scale)) is None


def test_a_scaler_that_was_not_seen_is_no_other_one() -> None:
    assert replaced(None, Scaler(2, 64.0)) is None
    assert replaced(Scaler(1, None), Scaler(2, 64.0)) is None
    finding = replaced(Scaler(1, 65536.0), None, Scaler(2, 64.0))
    assert finding is not None
    assert "the loss scale changes from 65,536 to 64." in finding.summary


def test_a_new_scaler_after_steps_that_were_not_seen_may_have_settled_in_them() -> None:
    windows = [scaled(n, STEP, UPDATE, scaler=Scaler(n, 2.0 ** (20 - n))) for n in (1, 5)]
    assert finding_of("reset", *windows) is None


def skips(course: str) -> Finding | None:
    """Steps that are taken (.) or skipped (x)."""
    windows = (scaled(n, STEP, UPDATE, skipped=each == "x") for n, each in enumerate(course, 1))
    return finding_of("skipped_steps", *windows)


def test_five_skips_in_a_row_are_reported_once_the_scale_had_settled() -> None:
    assert skips(".xxxx") is None
    finding = skips(".xxxxx")
    assert finding is not None and finding.first_step == 6
    assert finding.summary.startswith("5 of the last 6 recorded steps")
    assert ", the last 5 in a row. " in finding.summary
    assert skips("xxxxxxxx.") is None
    only = skips("." + "x" * 101)
    assert only is not None and only.evidence["in_a_row"] == only.evidence["of"] == 100


def test_ten_skips_from_the_first_step_on_are_information() -> None:
    assert skips("x" * 9 + ".") is None
    finding = skips("x" * 12 + "." * 3)
    assert finding is not None
    assert (finding.severity, finding.first_step, finding.last_step) == ("info", 1, 12)
    assert finding.summary.startswith("The first 12 recorded steps were skipped: ")
    assert "The loss scale was 1,024 at the first one and is 1,024 at step 12." in finding.summary
    later = skips("x" * 12 + "." * 60 + "x" * 5)
    assert later is not None
    assert later.severity == "warning"
    assert "12 skipped steps at the start, which calibrated the scale, are not counted." in (
        later.summary
    )


def test_more_than_five_of_the_last_hundred_are_reported_without_a_row() -> None:
    often = ".x" * 5
    assert skips(often) is None
    finding = skips(often + ".x")
    assert finding is not None and ", the last" not in finding.summary
    last = skips(often + ".xx")
    assert last is not None and ", the last 2 in a row. " in last.summary
    assert skips(often + "." * 95 + "x") is None  # the first of them is a hundred steps ago


# ---------------------------------------------------------------------- several scalers


def of_two(scales: tuple[float, float], *events: Event) -> StepRecord:
    """A window in which each of two losses has a scaler."""
    window = scaled(1, *events, scales=scales)
    for number, micro_batch in enumerate(window.micro_batches, 1):
        micro_batch.scaler = number
    return window


def test_two_scalers_are_an_error_once_their_scales_differ() -> None:
    finding = finding_of("two_scalers", of_two((2048.0, 1024.0), STEP))
    assert finding is not None and finding.severity == "error"
    assert finding.summary == (
        "The losses of this window were multiplied by 2,048 (scaler 1) and 1,024 (scaler 2). One "
        "scaler divides all gradients by its own scale, so the losses do not have the weights that "
        "the loop gives them: one counts 2 times too much or too little."
    )
    equal = finding_of("two_scalers", of_two((1024.0, 1024.0), STEP))
    assert equal is not None and equal.severity == "warning"
    assert "The scales are still equal." in equal.summary
    assert finding_of("two_scalers", scaled(1, STEP)) is None


def test_two_scalers_of_which_one_has_fallen_to_zero_have_no_ratio() -> None:
    finding = finding_of("two_scalers", of_two((0.0, 1024.0), STEP))
    assert finding is not None and finding.severity == "error"
    assert finding.summary.endswith("do not have the weights that the loop gives them.")


@pytest.mark.parametrize("scales", [(math.nan, 8.0), (8.0, math.nan)])
def test_a_scale_that_is_no_number_is_none_of_those_shown(scales: tuple[float, float]) -> None:
    finding = finding_of("two_scalers", of_two(scales, STEP))
    assert finding is not None and finding.severity == "error"
    assert finding.evidence["scales"] == [8.0]


def test_a_scaler_that_steps_and_did_not_scale_is_an_error() -> None:
    other = Event("scaler_step", 2, scaler=2)
    finding = finding_of("two_scalers", scaled(1, other))
    assert finding is not None and finding.severity == "error"
    assert finding.summary == (
        "Scaler 1 multiplied the loss, and scaler 2 unscaled or stepped. The gradients are divided "
        "by the scale of a scaler that did not multiply the loss."
    )
    of_the_window_before = Event("unscale", 0, scaler=2)
    assert finding_of("two_scalers", scaled(1, of_the_window_before, STEP)) is None


def taken_over(before: Scaler | None, now: Scaler, number: int = 1, *events: Event) -> StepRecord:
    """The first step of an optimizer, of whose parameters another one had made ten."""
    earlier = Replaced(0, 10, before)
    return scaled(number, *events, STEP, scaler=now, replaced=earlier)


def test_a_new_optimizer_with_a_new_scaler_is_information_and_the_second_time_a_warning() -> None:
    finding = finding_of("reset", taken_over(Scaler(1, 64.0), Scaler(2, 65536.0)))
    assert finding is not None and finding.severity == "info"
    assert finding.summary == (
        "SGD trains parameters that an earlier optimizer had trained for 10 steps, and steps "
        "through another GradScaler object. The loss scale changes from 64 to 65,536. It may skip "
        "steps until the scale settles again."
    )
    again = finding_of("reset", taken_over(Scaler(2, 64.0), Scaler(3, 65536.0)))
    assert again is not None and again.severity == "warning"
    assert finding_of("reset", taken_over(Scaler(1, 65536.0), Scaler(2, 65536.0))) is None
    assert finding_of("reset", taken_over(None, Scaler(2, 65536.0))) is None
    assert finding_of("reset", taken_over(Scaler(1, 64.0), Scaler(2, 65536.0), 2)) is None  # a gap


def test_an_optimizer_that_resumes_without_the_state_of_its_scaler_is_information() -> None:
    fresh, loaded = Scaler(1, 65536.0), Scaler(1, 65536.0, loaded=True)
    trained, new = Resumed(loaded=True, trained=True), Resumed(loaded=True)
    finding = finding_of("reset", scaled(1, STEP, scaler=fresh, resumed=trained))
    assert finding is not None and finding.severity == "info"
    assert finding.title == "The optimizer is resumed without the state of its GradScaler"
    assert finding_of("reset", scaled(1, STEP, scaler=loaded, resumed=trained)) is None
    assert finding_of("reset", scaled(1, STEP, scaler=fresh, resumed=new)) is None
    assert finding_of("reset", scaled(1, STEP, scaler=fresh)) is None


def test_skipped_steps_are_told_apart_by_their_losses() -> None:
    overflow, nan = scaled(skipped=True), scaled(skipped=True)
    nan.micro_batches[0].loss = math.nan
    windows = [overflow, scaled(), *[nan] * 6]
    for number, window in enumerate(windows, 1):
        windows[number - 1] = replace(window, step=number)
    finding = finding_of("skipped_steps", *windows)
    assert finding is not None
    assert finding.summary.startswith(
        "6 of the last 7 recorded steps were skipped, the last 6 in a row. Their gradients were "
        "not finite, so their data was not used. The loss was NaN at 6 skipped steps of the run, "
        "which no loss scale changes: look at the loss and its data. 1 skipped step at the start, "
        "which calibrated the scale, is not counted."
    )


@pytest.mark.parametrize(("events", "is_bypassed"), [((), True), ((STEP,), False)])
def test_a_non_finite_gradient_that_a_bypassed_scaler_unscaled_names_the_scaler(
    events: tuple[Event, ...], is_bypassed: bool
) -> None:
    window = scaled(1, Event("unscale", 2), *events, norm=math.inf)
    (finding,) = (f for f in judged([facts(window)]).findings if f.rule == "norm.nonfinite")
    named = "but not GradScaler.step, which skips a step" in finding.summary
    assert (named, "scaler.step(optimizer)" in finding.fix) == (is_bypassed, is_bypassed)
