"""Whether ranks combined their gradients by hand, and how: a few numbers, and what they prove."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradledger.records import Event, Replica, Samples, StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.ranks.held_in_parts import INSIDE, OF_ONE_BATCH
from gradledger_monitor.model.ranks.manual_all_reduce import OF_PARTS
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


def test_optimizers_of_shards_are_named_where_the_sum_cannot_be_compared() -> None:
    """ZeRO by hand: each rank's samples are of the parameters that its own optimizer holds."""
    names, applied = ("body.weight", "head.weight"), (SUM, [8.0, 1.0, 2.0, 3.0])
    ranks = []
    for name, before, after in zip(names, LEFT, applied, strict=True):
        replica = Replica(1, [0], [1.0], [[4]], [name])
        of_rank: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 4}
        samples = Samples(before, after)
        ranks.append(record([term(10, 0.1)], replica=replica, samples=samples, **of_rank))
    assert facts(*ranks).unmeasured == OF_PARTS


@pytest.mark.parametrize("first", [True, False])
def test_a_division_by_k_as_the_ranks_are_combined_divides_all_losses(first: bool) -> None:
    """In a communication hook. A loss of unequal counts is beside one of equal counts."""
    ranks = []
    for before, counts in zip(LEFT, ((20, 30), (40, 10)), strict=True):
        losses = [
            [
                term(4, 1 / 4, undivided=True, head=1),
                term(count, 1 / count, undivided=True, head=2),
            ][:: 1 if first else -1]
            for count in counts
        ]
        ranks.append(
            record(
                losses,
                post_factor=None,
                sync="unknown",
                collectives_after=4,
                samples=Samples(before, scaled(1 / 4)),
            )
        )
    assert accused(judged([facts(*ranks)])) == {"reduction.token_weights_unequal": 1}


@pytest.mark.parametrize(("losses", "reason"), [((1.0, 1.0), OF_ONE_BATCH), ((1.0, 2.0), INSIDE)])
def test_collectives_inside_backward_may_be_those_of_a_divided_model(
    losses: tuple[float, ...], reason: str
) -> None:
    ranks = [record([term(10, 0.1)], sync="unknown", post_factor=None) for _ in losses]
    for each, loss in zip(ranks, losses, strict=True):
        each.micro_batches[0].loss, each.micro_batches[0].collectives = loss, 2
    assert facts(*ranks).unmeasured == reason


@given(st.floats(1e-6, 1e6))
def test_one_factor_over_all_coordinates_is_found(factor: float) -> None:
    merged = step(scaled(factor), scaled(factor))
    assert merged.all_reduce_factor == pytest.approx(factor)
    assert merged.unmeasured is None
    assert merged.ledger is not None
    assert (merged.ledger.tokens, merged.ledger.balance) == pytest.approx((20, 2 * factor))


@pytest.mark.parametrize(
    ("factors", "severity"),
    [((0.35, 0.35), "warning"), ((0.35, 0.6), None), ((0.5, 0.5), None)],
)
def test_a_constant_factor_of_the_all_reduce_is_no_weight_of_the_loss(
    factors: tuple[float, ...], severity: str | None
) -> None:
    findings = [
        finding
        for finding in judged([step(scaled(f), scaled(f)) for f in factors]).findings
        if finding.rule == "reduction.balance_off"
    ]
    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    if severity == "warning":
        assert "by 0.35; this loss needs their average, 0.5 times the sum" in findings[0].summary


def test_what_hooks_of_the_last_backward_left_proves_nothing_of_the_gradients_before_them() -> None:
    """They divide each gradient, and the all-reduce that they begin may have ended or not."""

    def of(**more: Any) -> StepFacts:
        merged = step(SUM, SUM)
        sent = [record([term(10, 1 / 10)], samples=Samples(x, SUM), **more) for x in LEFT]
        for each in sent:
            each.post_factor, each.sync, each.micro_batches[-1].collectives = None, "unknown", 5
        return facts(*sent) if more else merged

    assert of().all_reduce_factor == pytest.approx(1)
    first = of(before_hooks=False)
    assert first.all_reduce_factor is None
    assert "communicate inside backward" in str(first.unmeasured)
    assert of(before_hooks=True).all_reduce_factor == pytest.approx(1)


def test_the_fix_of_a_comm_hook_is_in_the_hook() -> None:
    by_hand, by_hook = (
        next(f for f in judged([step(SUM, SUM, **more)]).findings)
        for more in ({}, {"wrapper": "ddp", "before_hooks": True})
    )
    assert by_hand.rule == by_hook.rule == "reduction.world_size"
    assert "dist.all_reduce(p.grad)" in by_hand.fix
    assert "comm hook of DDP" in by_hook.fix and "p.grad" not in by_hook.fix


@pytest.mark.parametrize(("factor", "excess"), [(1 / 2, 2), (1 / 3, None), (1 / 4, None)])
def test_a_sum_that_the_ranks_of_a_node_divide_is_too_large(
    factor: float, excess: float | None
) -> None:
    left = ([1.0, -2.0, 0.5], [3.0, 1.0, -0.25], [0.5, 0.5, 0.5], [2.0, 1.0, 3.0])
    applied = [factor * sum(column) for column in zip(*left, strict=True)]
    findings = judged([step(*[applied] * 4, left=left)]).findings
    named = [f.evidence["factor"] for f in findings if f.rule == "reduction.world_size"]
    assert named == ([] if excess is None else [excess])


TIED = ([1.0, -2.0, 0.5, 2.0, 3.0, -1.0], [3.0, 1.0, -0.25, 1.0, 0.5, 4.0])


@pytest.mark.parametrize(
    ("times", "share", "named"),
    [
        (2, 1.4, True),
        (3, 1.4, False),
        (2, 1.001, False),  # a factor for biases, and the loss for a log
        (2, None, False),
    ],
)
def test_parameters_that_are_added_up_twice_are_named(
    times: int, share: float | None, named: bool
) -> None:
    """The first three coordinates are those of tied weights."""
    total = [a + b for a, b in zip(*TIED, strict=True)]
    applied = [*(times * value for value in total[:3]), *total[3:]]
    merged = step(applied, applied, left=TIED, reduced_share=share)
    assert merged.ledger is None
    evaluation = judged([merged])
    assert accused(evaluation) == ({"reduction.world_size": 1} if named else {})
    if named:
        (finding,) = (f for f in evaluation.findings if f.rule == "reduction.world_size")
        assert "by 1 in some parameters and by 2 in others" in finding.summary


@pytest.mark.parametrize(
    ("applied", "left", "reason"),
    [
        (
            (scaled(1), scaled(2)),
            LEFT,
            "the ranks step on different gradients, or each on other parameters",
        ),
        (([*SUM[:2], 1.0, 0.0],) * 2, LEFT, "were combined, but not as a sum"),
        (([0.0] * 4,) * 2, LEFT, "were combined, but not as a sum"),
        (([*SUM[:2], float("inf"), 0.0],) * 2, LEFT, "the sampled gradients are not finite"),
        ((SUM[:3], SUM), LEFT, "the ranks sampled the gradients of different parameters"),
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


GRADIENTS = (
    [1.0, -2.0, 0.5, 0.0, 4.0, -1.0, 0.25, 3.0],
    [3.0, 1.0, -0.25, 0.0, -1.0, 2.0, 0.5, 0.5],
    [-1.0, 1.5, 2.0, 0.0, 0.5, 0.5, -3.0, 1.0],
)


def weighted(*factors: float, left: Any = GRADIENTS) -> StepFacts:
    """A step of ranks whose gradients were each multiplied by a factor and added up."""
    columns = zip(*left, strict=True)
    applied = [sum(f * v for f, v in zip(factors, c, strict=True)) for c in columns]
    return step(*[applied] * len(factors), left=left)


@pytest.mark.parametrize("factors", [(0.5, 0.2, 0.3), (5e-9, 2e-9, 3e-9), (1.0, 0.0, 7.0)])
def test_the_factors_of_a_weighted_sum_are_found(factors: tuple[float, ...]) -> None:
    merged = weighted(*factors)
    assert merged.unmeasured is None and merged.all_reduce is not None
    assert merged.all_reduce.factors == pytest.approx(factors, rel=1e-9)
    assert merged.all_reduce_factor is None
    weights = {each.rank: each.weight for each in merged.terms}
    assert weights == pytest.approx({r: f / 10 for r, f in enumerate(factors)}, rel=1e-9)


@pytest.mark.parametrize(
    ("factors", "left"),
    [
        ((0.5, -0.2, 0.3), GRADIENTS),  # no weight of tokens is negative
        ((0.5, 0.2, 0.3), (*GRADIENTS[:2], [2 * v for v in GRADIENTS[0]])),  # which rank's is open
        ((0.5, 0.2, 0.3), tuple(row[:6] for row in GRADIENTS)),  # three numbers always fit
    ],
)
def test_factors_that_the_samples_leave_open_are_not_measured(
    factors: tuple[float, ...], left: Any
) -> None:
    merged = weighted(*factors, left=left)
    assert "were combined, but not as a sum" in str(merged.unmeasured)


@pytest.mark.parametrize(
    ("factors", "reason"),
    [
        (
            (1.0, 3.0),
            "multiplied by 3 in some parameters and by 1 in others; an all-reduce",
        ),
        ((0.1, 0.05), "multiplied by 0.1 in some parameters and by 0.05 in others"),
        ((1.0, -1.0), "combined, but not as a sum"),
    ],
)
def test_sums_of_which_some_are_multiplied_by_another_number_state_both(
    factors: tuple[float, float], reason: str
) -> None:
    sums = [sum(values) for values in zip(*GRADIENTS, strict=True)]
    applied = [value * factors[index > 3] for index, value in enumerate(sums)]
    merged = step(*[applied] * 3, left=GRADIENTS)
    assert reason in str(merged.unmeasured)
    assert ("twice" in str(merged.unmeasured)) is (factors == (1.0, 3.0))


@pytest.mark.parametrize(
    ("operation", "name"), [(max, "maximum"), (min, "minimum"), (prod, "product")]
)
def test_what_is_combined_by_another_operation_is_named(operation: Any, name: str) -> None:
    applied = [operation(values) for values in zip(*GRADIENTS, strict=True)]
    (finding,) = judged([step(*[applied] * 3, left=GRADIENTS)] * 2).findings
    assert finding.rule == "reduction.world_size" and finding.severity == "error"
    assert finding.title == f"The ranks' gradients are combined by their {name}"


@pytest.mark.parametrize("masked", [2, 4])
def test_a_rank_that_masks_some_gradients_is_named_where_enough_show_it(masked: int) -> None:
    left = (*GRADIENTS[:2], [*([0.0] * masked), *GRADIENTS[2][masked:]])
    applied = [sum(values) / 3 for values in zip(*left, strict=True)]
    findings = judged([step(*[applied] * 3, left=GRADIENTS)] * 5).findings
    titles = ["Some gradients of rank 2 are left out of the sum over the ranks"]
    assert [f.title for f in findings] == (titles if masked == 4 else [])


def test_a_rank_that_leaves_out_other_gradients_in_each_window_may_send_them_later() -> None:
    steps = []
    for masked in (range(4), range(1, 5), range(4), range(1, 5), range(4), range(1, 5)):
        last = [0.0 if i in masked else v for i, v in enumerate(GRADIENTS[2])]
        applied = [sum(values) / 3 for values in zip(*GRADIENTS[:2], last, strict=True)]
        steps.append(step(*[applied] * 3, left=GRADIENTS))
    assert judged(steps).findings == []


def test_a_rank_whose_loss_is_multiplied_by_zero_adds_nothing() -> None:
    """Its tokens have no weight and are not counted; its micro-batch is, in the average."""
    fields: dict[str, Any] = {"sync": "unknown", "collectives_after": 4}
    busy = record([term(10, 1 / 10)], post_factor=1 / 2, **fields)
    zeros = Samples([0.0] * 4, scaled(0.5))
    idle = record([term(10, 0.0, coefficient=0.0)], post_factor=None, samples=zeros, **fields)
    merged = facts(busy, idle)
    assert merged.ledger is not None and merged.ledger.tokens == 10
    (finding,) = judged([merged] * 2).findings
    assert finding.title.startswith("1 of 2 ranks has no tokens with a weight")


def test_what_cancels_between_the_ranks_may_be_off_by_the_rounding_of_its_parts() -> None:
    left = ([1.0, 2.0, 3.0, 1e4], [1.0, 2.0, 3.0, -1e4])
    merged = step(*([1.0, 2.0, 3.0, 1e-3],) * 2, left=left)
    assert merged.all_reduce_factor == pytest.approx(0.5)


def test_a_rank_that_sent_no_sample_leaves_the_step_unmeasured() -> None:
    one = record([term(10, 1 / 10)], sync="unknown", post_factor=None, collectives_after=4)
    merged = facts(replace(one, samples=Samples(LEFT[0], SUM)), one)
    assert merged.unmeasured == "how the ranks' gradients were combined was not seen"


def taken_over(norm: float = 3.0, own: Any = LEFT[1]) -> StepFacts:
    """Two ranks, of which one sends no samples: it steps on its own gradients."""
    fields: dict[str, Any] = {"sync": "unknown", "collectives_after": 4, "norm": 3.0}
    source = record([term(10, 1 / 10)], post_factor=1.0, **fields)
    samples = Samples(list(own), LEFT[0])
    other = record([term(10, 1 / 10)], post_factor=None, samples=samples, **fields | {"norm": norm})
    return facts(source, other)


def test_gradients_of_one_rank_that_all_step_on_leave_the_others_without_weight() -> None:
    merged = taken_over()
    assert merged.unmeasured is None
    assert {each.rank: each.weight for each in merged.terms} == {0: 1 / 10, 1: 0.0}
    steps = [taken_over() for _ in range(3)]
    for number, each in enumerate(steps, 1):
        each.step = number
    findings = [f for f in judged(steps).findings if f.inhibited_by is None]
    assert [f.rule for f in findings] == ["reduction.token_weights_unequal"]
    assert "multiplies the gradients by" not in findings[0].summary


def test_what_a_rank_takes_over_has_the_same_norm_and_replaces_gradients() -> None:
    for merged in (taken_over(norm=4.0), taken_over(own=[0.0] * 4)):
        assert "was not seen" in str(merged.unmeasured)


def test_a_factor_of_the_ranks_on_gradients_that_are_not_combined_is_no_second_division() -> None:
    """K = R = 2: the loop may not wait for the all-reduce of what it has divided."""
    one = record([term(10, 1 / 20)] * 2, post_factor=0.5, sync="unknown", collectives_after=4)
    for collectives, rule in ((4, "reduction.world_size"), (0, "reduction.double_division")):
        ranks = [replace(one, collectives_after=collectives, norm=norm) for norm in (1.0, 2.0)]
        if not collectives:
            ranks = [replace(each, sync="none") for each in ranks]
        steps = [facts(*ranks), facts(*ranks)]
        steps[1].step = steps[0].step + 1
        assert list(accused(judged(steps))) == [rule]


def moved(*applied: list[float]) -> StepFacts:
    """A step of ranks that keep what their two backwards leave in their own buffers."""
    last = ([0.5, -1.0, 0.5, 0.0], [1.0, 1.0, 2.0, 0.0])
    sent = []
    for rank, values in enumerate(applied):
        one = record([term(10, 1 / 20)] * 2, post_factor=None, sync="unknown", collectives_after=4)
        one.micro_batches[1].fresh = True
        one.samples = Samples(last[rank], values, LEFT[rank])
        sent.append(one)
    return facts(*sent)


def test_what_is_added_up_outside_grad_and_combined_is_accounted_for_like_other_gradients() -> None:
    merged = moved(scaled(0.5), scaled(0.5))
    assert merged.all_reduce_factor == pytest.approx(0.5)
    assert (merged.unmeasured, merged.micro_batches, merged.discarded) == (None, 2, [])
    assert merged.ledger is not None and merged.ledger.balance == pytest.approx(1)


def test_ranks_that_scale_what_is_added_up_outside_grad_differently_are_named() -> None:
    merged = moved(scaled(0.5), scaled(0.25))
    assert merged.all_reduce is not None and merged.all_reduce.scales == (1.0, 0.5)
    assert merged.unmeasured == "the ranks step on different gradients, or each on other parameters"


def test_what_is_neither_the_last_gradients_nor_all_of_them_is_not_measured() -> None:
    merged = moved([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    assert merged.unmeasured == "rank 0: gradients were moved, or discarded, between micro-batches"


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


def own(before_hooks: bool) -> StepFacts:
    """Ranks of a DDP model with a comm hook, none of whose gradients changed in their backward."""
    ranks = []
    for norm in (1.0, 2.0):
        sent = record([term(10, 1 / 10)], wrapper="ddp", sync="unknown", norm=norm)
        sent.before_hooks, sent.micro_batches[0].collectives = before_hooks, 1
        sent.micro_batches[0].wrapper = "sync"
        ranks.append(sent)
    return facts(*ranks)


def test_a_comm_hook_that_leaves_each_rank_its_gradients_combines_nothing() -> None:
    step = own(before_hooks=True)
    assert step.record.sync == "none"
    assert own(before_hooks=False).unmeasured is not None
    assert accused(judged([step])) == {"ddp.never_synced": 1}
    (found,) = (f for f in judged([step]).findings if f.rule == "ddp.never_synced")
    assert found.title == "The comm hook of DDP does not combine the gradients"


def test_a_comm_hook_before_the_last_backward_may_have_combined_what_it_received() -> None:
    """The loop synchronises the first micro-batch, and steps on what the last one adds to it."""
    ranks = []
    for norm in (1.0, 2.0):
        sent = record([term(10, 1 / 10)] * 2, wrapper="ddp", sync="unknown", norm=norm)
        sent.before_hooks, sent.micro_batches[0].collectives = True, 1
        sent.micro_batches[0].wrapper, sent.micro_batches[1].wrapper = "sync", "no_sync"
        ranks.append(sent)
    step = facts(*ranks)
    assert step.unmeasured is not None
    assert accused(judged([step])) == {"ddp.wrong_microbatch_synced": 1}


def test_sums_in_each_backward_of_a_window_leave_the_factor_unmeasured() -> None:
    """The second one adds up what the first has added up already."""
    ranks = []
    for left in LEFT:
        sent = record([term(10, 1 / 10), term(10, 1 / 10)], post_factor=None, sync="unknown")
        sent.samples, sent.before_hooks = Samples(left, SUM), True
        for micro_batch in sent.micro_batches:
            micro_batch.collectives = 4
        ranks.append(sent)
    assert "combined anew" in str(facts(*ranks).unmeasured)
    for sent in ranks:
        sent.own_sums = True  # then a sum of sums would not fit
    assert facts(*ranks).unmeasured is None
    for sent in ranks:
        sent.own_sums, sent.micro_batches[0].collectives = False, 0
    assert facts(*ranks).unmeasured is None


# ---------------------------------------------------------------------- ranks that differ

FOUR = ([1.0, -2.0, 0.5, 3.0], [3.0, 1.0, -0.25, 1.0], [2.0, 2.0, 1.0, -1.0], [-1.0, 4.0, 2.0, 5.0])


def added(*ranks: list[float], factor: float = 1.0) -> list[float]:
    """The sum of samples, times a factor."""
    return [factor * sum(values) for values in zip(*ranks, strict=True)]


def test_groups_of_ranks_are_found_also_if_each_rank_scales_its_sum() -> None:
    first, second = added(*FOUR[:2], factor=0.5), added(*FOUR[2:], factor=0.5)
    merged = step(first, first, second, second, left=FOUR)
    assert merged.all_reduce is not None and merged.all_reduce.groups == ((0, 1), (2, 3))
    assert merged.unmeasured == "the ranks step on different gradients, or each on other parameters"
    doubled = [2 * value for value in second]
    merged = step(first, first, second, doubled, left=FOUR)
    assert merged.all_reduce is not None and merged.all_reduce.groups == ((0, 1), (2, 3))
    alone = step(first, first, FOUR[2], FOUR[3], left=FOUR)
    assert alone.all_reduce is not None and alone.all_reduce.groups == ((0, 1), (2,), (3,))


def test_ranks_that_scale_one_sum_by_their_own_numbers_are_found() -> None:
    left = FOUR[:2]
    merged = step(added(*left), added(*left, factor=3.0), left=left)
    assert merged.all_reduce is not None and merged.all_reduce.scales == pytest.approx((1.0, 3.0))


def test_some_combined_coordinates_show_an_all_reduce_that_leaves_others_out() -> None:
    left = ([1.0, -2.0, 0.5, 3.0, 7.0], [3.0, 1.0, -0.25, 1.0, 2.0])
    both = added(*left)
    merged = step([*both[:4], 7.0], [*both[:4], 2.0], left=left)
    assert merged.all_reduce is not None and merged.all_reduce.partly
    two = step([*both[:2], 0.5, 3.0, 7.0], [*both[:2], -0.25, 1.0, 2.0], left=left)
    assert two.all_reduce is not None and not two.all_reduce.is_combined  # chance, maybe


def test_own_gradients_in_one_ratio_are_not_taken_for_a_scaled_sum() -> None:
    left = (FOUR[0], [2 * value for value in FOUR[0]])
    merged = step(*left, left=left)
    assert merged.all_reduce is not None and not merged.all_reduce.is_combined


def test_clipping_by_each_ranks_own_norm_is_divided_out() -> None:
    clip = Event("clip_norm", after=1, limit=1.0, norm=2.0)
    both = added(*FOUR[:2], factor=0.5)
    half = [value / 2 for value in both]
    merged = step(half, half, left=FOUR[:2], events=[clip])
    assert merged.all_reduce_factor == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("applied", "reason"),
    [
        ([v / 2 + w for v, w in zip(*LEFT, strict=True)], "before the loop combined them"),
        (LEFT[1], "yet the ranks' gradients are equal when the parameters are updated"),
    ],
)
def test_gradients_that_each_rank_clips_before_they_are_combined_do_not_differ_at_the_step(
    applied: list[float], reason: str
) -> None:
    clips = (Event("clip_norm", after=1, limit=1.0, norm=norm) for norm in (2.0, 0.5))
    merged = facts(
        *(
            record(
                [term(10, 1 / 10)],
                samples=Samples(before, applied),
                events=[clip],
                post_factor=None,
                sync="unknown",
                collectives_after=4,
            )
            for before, clip in zip(LEFT, clips, strict=True)
        )
    )
    assert "by another factor" in str(merged.unmeasured)
    assert reason in str(merged.unmeasured)


def early(norms: tuple[float, float] = (1.0, 2.0), after: Any = (SUM, SUM)) -> StepFacts:
    """Two micro-batches; gradients change between them, with the collectives that ran there."""
    ranks = []
    for before, then, norm in zip(LEFT, after, norms, strict=True):
        one = record([term(10, 1 / 20)] * 2, norm=norm)
        one.micro_batches[1].samples = Samples(before, then)
        ranks.append(one)
    return facts(*ranks)


def test_gradients_combined_before_the_last_backward_are_named_and_leave_no_ledger() -> None:
    merged = early()
    assert merged.all_reduce is not None and merged.all_reduce.early == 1
    assert merged.ledger is None
    assert accused(judged([merged])).keys() == {"ddp.wrong_microbatch_synced"}


def early_in_hooks(*applied: list[float], **more: Any) -> StepFacts:
    """Hooks average in the first of two backwards; what the ranks step on then."""
    ranks = []
    for before, after in zip(LEFT, applied, strict=True):
        fields: dict[str, Any] = {"sync": "unknown", "post_factor": None, "before_hooks": True}
        one = record([term(10, 1 / 20)] * 2, samples=Samples(before, after), **fields | more)
        one.micro_batches[0].collectives = 4
        one.micro_batches[1].samples = Samples(before, scaled(0.5))
        ranks.append(one)
    return facts(*ranks)


def test_hooks_that_combine_gradients_before_the_last_backward_alone_are_named() -> None:
    merged = early_in_hooks(*LEFT)
    assert merged.all_reduce is not None and merged.all_reduce.early == 1
    assert accused(judged([merged])).keys() == {"ddp.wrong_microbatch_synced"}
    communicates = early_in_hooks(*LEFT, collectives_after=4)  # it may still combine them
    assert judged([communicates]).findings == []
    assert judged([communicates]).coverage["ddp.wrong_microbatch_synced"].startswith("not_measured")


def test_gradients_that_are_combined_several_times_to_the_same_effect_are_information() -> None:
    both = scaled(0.5), scaled(0.5)
    (finding,) = judged([early_in_hooks(*both, own_sums=True)]).findings
    assert (finding.rule, finding.severity) == ("ddp.missing_no_sync", "info")
    assert finding.title == "Gradients are combined 2 times per step"
    uneven = [4.0, 1.0, 0.25, 0.0]
    assert "combined anew" in str(early_in_hooks(uneven, uneven).unmeasured)


def test_combinations_whose_result_the_loop_discards_are_not_counted() -> None:
    """A window whose backward failed is repeated."""
    ranks = []
    for before in LEFT:
        fields: dict[str, Any] = {"sync": "unknown", "post_factor": None, "before_hooks": True}
        samples = Samples(before, scaled(0.5))
        one = record([term(10, 1 / 20)] * 4, samples=samples, own_sums=True, **fields)
        for micro_batch in one.micro_batches:
            micro_batch.collectives, micro_batch.samples = 4, samples
        one.micro_batches[2].fresh = True
        ranks.append(one)
    merged = facts(*ranks)
    assert merged.all_reduce is not None and merged.all_reduce.repeats == 1
    assert merged.micro_batches == 2


@pytest.mark.parametrize(("between", "is_found"), [(1.0, True), (0.5, False)])
def test_sums_after_each_backward_are_no_average_though_the_ranks_divide_them_once(
    between: float, is_found: bool
) -> None:
    """``between`` multiplies the first sum: an average leaves what was equal as it is."""
    combined, ranks = scaled(between), []
    own = ([0.5, 1.0, -1.0, 2.0], [1.5, -0.5, 0.25, 1.0])
    totals = [[c + g for c, g in zip(combined, gradient, strict=True)] for gradient in own]
    average = [sum(values) / 2 for values in zip(*totals, strict=True)]
    for before, after in zip(LEFT, totals, strict=True):
        fields: dict[str, Any] = {"sync": "unknown", "collectives_after": 4, "post_factor": None}
        one = record([term(10, 1 / 20)] * 2, samples=Samples(after, average), **fields)
        one.micro_batches[1].samples = Samples(before, combined)
        ranks.append(one)
    (finding,) = judged([facts(*ranks)]).findings
    assert (finding.rule, finding.severity == "error") == ("ddp.missing_no_sync", is_found)


@pytest.mark.parametrize(
    "more",
    [
        {"norms": (1.0, 1.0 + 1e-6)},  # combined again after the last backward
        {"after": (scaled(0.5), scaled(1.5))},  # not equal: each rank did something of its own
    ],
)
def test_gradients_that_end_equal_or_were_never_equal_are_no_early_all_reduce(
    more: dict[str, Any],
) -> None:
    assert early(**more).all_reduce is None


# ------------------------------------------------------- parameters outside the DDP wrapper

WRAPPED = [1.0, 2.0, 3.0]
UNSEEN = "outside the wrapper was not seen"


def beside_ddp(before: Any, after: Any, **more: Any) -> StepFacts:
    """Two ranks with three coordinates that DDP averaged, and others outside the wrapper."""
    fields = {"wrapper": "ddp", "sync": "averaged", "outside": 1, "changed": True, **more}
    left = [[*WRAPPED, *values] for values in before]
    return step(*([*WRAPPED, *values] for values in after), left=left, **fields)


@pytest.mark.parametrize(
    ("before", "after", "more", "reason"),
    [
        (LEFT, (scaled(0.5), scaled(0.5)), {}, None),
        (LEFT, (scaled(0.5), scaled(0.25)), {}, "outside the wrapper differ"),
        (LEFT, (scaled(1.5), scaled(1.5)), {}, "by another factor than the rest"),
        (LEFT, ([9.0, 9.0, 9.0, 0.0],) * 2, {}, "but not as a sum"),
        (LEFT, ([float("inf")] * 4,) * 2, {}, "the sampled gradients are not finite"),
        (([], []), ([], []), {}, UNSEEN),
        ((LEFT[0], LEFT[0]), (scaled(0.5), scaled(0.5)), {}, UNSEEN),
        (LEFT, (scaled(1), scaled(1)[:3]), {}, UNSEEN),
        (
            LEFT,
            (scaled(1), scaled(1)),
            {"events": [Event("clip_norm", 1, limit=1, norm=2)], "norm": 4.0},
            "by another factor than the rest",
        ),
    ],
)
def test_what_a_loop_does_outside_ddp_is_measured_if_it_averages_and_else_has_a_reason(
    before: Any, after: Any, more: Any, reason: str | None
) -> None:
    merged = beside_ddp(before, after, **more)
    assert (reason or "") in str(merged.factor_unmeasured)
    assert (merged.factor_unmeasured is None) is (reason is None)
    assert (accused(judged([merged])), judged([merged]).verdict == "balanced") == ({}, not reason)


@pytest.mark.parametrize(
    ("factor", "text"),
    [(1, "by 1. Compared with the rest, their gradient is 2 times too large."),
     (0.25, "by 4. Compared with the rest, their gradient is 2 times too small.")],
)  # fmt: skip
def test_a_loop_that_divides_otherwise_than_ddp_is_reported(factor: float, text: str) -> None:
    (finding,) = judged([beside_ddp(LEFT, (scaled(factor), scaled(factor)))]).findings
    assert finding.rule == "reduction.world_size"
    assert text in finding.summary


SHARDS = [4.0, 5.0, 6.0], [-2.0, 7.0, 1.0]  # FSDP2 left other ones on each rank


def beside_fsdp2(factor: float, on_shards: float = 1.0) -> StepFacts:
    """Two ranks with three coordinates of shards, and others that FSDP2 ignores."""
    fields = {"wrapper": "fsdp2", "sync": "averaged", "sharded": True, "outside": 1}
    left = [[*shard, *values] for shard, values in zip(SHARDS, LEFT, strict=True)]
    shards = ([on_shards * value for value in shard] for shard in SHARDS)
    applied = ([*shard, *scaled(factor)] for shard in shards)
    return step(*applied, left=left, changed=True, **fields)


def test_what_fsdp2_ignores_is_averaged_by_the_loop_or_divided_otherwise() -> None:
    assert judged([beside_fsdp2(0.5)]).verdict == "balanced"
    assert beside_fsdp2(0.25, on_shards=0.5).factor_unmeasured is None
    (finding,) = judged([beside_fsdp2(1)]).findings
    assert finding.title == "Gradients outside FSDP2 are divided by another number than the rest"


def test_shards_that_the_loop_may_have_combined_are_not_judged() -> None:
    fields = {"wrapper": "fsdp2", "sync": "averaged", "sharded": True, "changed": True}
    mixed = [[1.0, 6.0, 3.5], [1.0, 6.0, 3.5]]
    merged = step(*mixed, left=list(SHARDS), **fields)
    assert "changes the gradients of some shards" in str(merged.unmeasured)
    clip = Event("clip_norm", 1, limit=1, norm=2)
    assert step(*mixed, left=list(SHARDS), events=[clip], **fields).unmeasured is None


def test_gradients_that_are_sent_in_half_precision_are_a_sum_up_to_its_errors() -> None:
    rounded = [
        value * error for value, error in zip(scaled(0.5), (1.004, 0.997, 1, 1.002), strict=True)
    ]
    merged = step(rounded, rounded)
    assert merged.all_reduce is not None and merged.all_reduce.rounded
    assert merged.all_reduce.factor == pytest.approx(0.5, rel=5e-3)
    assert merged.tolerance == tolerances.WEIGHT_HALF


@pytest.mark.parametrize(("norm", "rules"), [(1.0, ["reduction.world_size"]), (4.0, [])])
def test_a_clip_of_all_gradients_hides_no_other_division(norm: float, rules: list[str]) -> None:
    clip = Event("clip_norm", 1, limit=1, norm=2)  # leaves a norm of 1, if it is of all
    merged = beside_ddp(LEFT, (scaled(1), scaled(1)), events=[clip], norm=norm)
    assert [f.rule for f in judged([merged]).findings] == rules


def test_which_of_several_losses_a_gradient_outside_ddp_belongs_to_is_not_known() -> None:
    fields: dict[str, Any] = {"sync": "averaged", "outside": 1, "collectives_after": 4}
    terms = [term(10, 1 / 10), term(10, 1 / 10, kind="mse_loss")]
    ranks = [
        record(
            [terms],
            wrapper="ddp",
            post_factor=None,
            samples=Samples([*WRAPPED, *values], [*WRAPPED, *SUM]),
            **fields,
        )
        for values in LEFT
    ]
    coverage = judged([facts(*ranks)]).coverage["reduction.world_size"]
    assert coverage.startswith("not_measured: gradients of parameters outside")


def test_an_all_reduce_of_what_ddp_has_averaged_is_not_blamed_on_the_loss() -> None:
    """A loss that is multiplied by R, rightly: the loop adds up equal gradients afterwards."""
    of_all = term(10, 2 / 20, "sum", coefficient=2 / 20)
    sent = [
        record([of_all], sync="averaged", wrapper="ddp", collectives_after=4, post_factor=2.0)
        for _ in range(2)
    ]
    evaluation = judged([facts(*sent)])
    assert accused(evaluation) == {"reduction.world_size": 1}
    (found,) = evaluation.findings
    assert "multiplies the gradients by 2 after the wrapper has averaged them" in found.summary
    assert "no further all-reduce" in found.fix


@pytest.mark.parametrize(("micro_batches", "named"), [(1, True), (2, False), (4, True)])
def test_a_division_of_what_ddp_has_averaged_is_not_blamed_on_the_loss(
    micro_batches: int, named: bool
) -> None:
    """With as many micro-batches as ranks, the loop may divide by these, and so may the loss."""
    means = [term(10, 1 / (10 * micro_batches)) for _ in range(micro_batches)]
    windows = [
        [record(means, n, sync="averaged", wrapper="ddp", post_factor=0.5) for _ in range(2)]
        for n in (1, 2)
    ]
    (found,) = judged([facts(*sent) for sent in windows]).findings
    assert ("divides the gradients by 2 after the wrapper" in found.summary) is named
    assert ("and no factor" in found.fix) is named


@pytest.mark.parametrize(("micro_batches", "named"), [(2, False), (4, True)])
def test_a_sum_of_as_many_micro_batches_as_ranks_may_lack_k(
    micro_batches: int, named: bool
) -> None:
    """Each is divided by the tokens of all ranks, which R compensates, and K is left out."""
    weight = 1 / (10 * micro_batches)
    of_all = [term(10, weight, "sum", coefficient=weight) for _ in range(micro_batches)]
    sent = [record(of_all, sync="averaged", wrapper="ddp", post_factor=2.0) for _ in range(2)]
    evaluation = judged([facts(*sent)])
    texts = [found.summary + found.fix for found in evaluation.findings]
    assert any("the loop multiplies the gradients by 2" in text for text in texts) is named
    assert any("no further all-reduce" in text for text in texts) is named


@pytest.mark.parametrize(("factor", "measured"), [(0.5, True), (1.0, False)])
def test_a_step_that_communicates_leaves_averaged_gradients_as_they_are(
    factor: float, measured: bool
) -> None:
    """Muon shares out its work over the ranks. Of a sum, it may divide its copies."""
    in_step = {"sync": "the optimizer communicates with other ranks in its step, out of sight"}
    combined = step(scaled(factor), scaled(factor), missing=in_step)
    assert (combined.unmeasured is None) == measured
    apart = step(*LEFT, missing=in_step)
    assert apart.unmeasured is not None and "in its step" in apart.unmeasured
    shards = step(scaled(0.5), scaled(0.5), missing=in_step, tensor_group=[0, 1])
    assert shards.unmeasured is not None


@pytest.mark.parametrize("idle", [1, 2])
@pytest.mark.parametrize("equal", [True, False])
def test_a_rank_without_a_backward_adds_zeros(idle: int, equal: bool) -> None:
    """One rank with gradients scales its own; of several, the samples show their sum."""
    fields: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 4}
    busy = LEFT[: 3 - idle]
    total = [sum(column) / 3 for column in zip(*busy, strict=True)]
    sent = [record([term(10, 1 / 10)], samples=Samples(x, total), **fields) for x in busy]
    if idle == 2:
        sent[0].samples, sent[0].post_factor = None, 1 / 3
    for number in range(idle):
        sent.append(record([], norm=1.0 if equal else 1.5 + number, **fields))
        sent[-1].micro_batches = []
    merged = facts(*sent)
    assert (merged.all_reduce_factor == pytest.approx(1 / 3)) is equal
    assert (merged.ledger is not None) is equal
    if merged.ledger is not None:
        assert merged.ledger.balance == pytest.approx((3 - idle) / 3)
        (finding,) = judged([merged] * 2).findings
        assert finding.rule == "reduction.balance_off"
        assert finding.title.startswith(f"{idle} of 3 ranks ha")
