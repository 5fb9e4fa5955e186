"""What a loop discards or lets grow, at the thresholds of the rules."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from gradledger.records import Event, LeftOpen, Samples, Term
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.model.losses.repeated import IN_PARTS, UNREACHED
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.unmeasured import LEFT_OR_ASSIGNED, NO_BACKWARD
from gradledger_monitor.rules.balance.diagnosis import ADDED_AGAIN, diagnose
from gradledger_monitor.rules.framework_fixes import PREPARED_SCHEDULE
from gradledger_monitor.rules.loop.grads_not_zeroed import (
    ALSO_NOT_ZEROED,
    FIX_APART,
    FIX_BEFORE,
    FIX_BETWEEN,
)
from gradledger_monitor.rules.norm.exploding import Exploding
from helpers.facts import CROSS_ENTROPY, facts, judged, record, term


def finding_of(rule: str, *steps: StepFacts) -> Finding | None:
    """The finding of a rule in windows in order."""
    return next((f for f in judged(steps).findings if f.rule == rule), None)


def discarded_windows(norm: float | None = None, loss: float = 1.0) -> Finding | None:
    """Of two micro-batches the first was zeroed before the step; a clip saw a norm before."""
    clip = Event("clip_norm", 1, norm=norm)
    step_record = record([term(10, 0.1), term(10, 0.1)], 2, events=[clip])
    step_record.micro_batches[0].loss = loss
    step_record.micro_batches[1].fresh = True
    return finding_of("loop.discarded_microbatches", facts(step_record))


def test_backwards_before_the_first_step_may_measure_gradients() -> None:
    measured = record([term(10, 0.1), term(10, 0.1)], 1)
    measured.micro_batches[1].fresh = True
    assert finding_of("loop.discarded_microbatches", facts(measured)) is None


@pytest.mark.parametrize("norm", [None, 3.0])
def test_micro_batches_that_no_step_used_are_reported(norm: float | None) -> None:
    finding = discarded_windows(norm)
    assert finding is not None
    assert finding.summary.startswith(
        "The gradients of 1 micro-batch (10 elements) were zeroed before any optimizer stepped on "
        "them, so this data was not used."
    )


@pytest.mark.parametrize(
    ("zeroed_at", "drawn", "severity"),
    [
        ((26,), None, "info"),  # a guard on a loss, after the first backward of a window
        ((11, 21), None, "warning"),  # as the tail of each epoch
        ((11, 17, 36), None, "info"),
        ((3, 4, 9, 10, 19), None, "warning"),  # no order, and many
        ((26,), 3, "warning"),  # one backward is of a batch of the epoch before
        ((26,), 5, "info"),  # a batch without a backward
    ],
)
def test_what_is_discarded_by_chance_is_information(
    zeroed_at: tuple[int, ...], drawn: int | None, severity: str
) -> None:
    windows = []
    for number in range(1, max(zeroed_at) + 1):
        sent = record([term(10, 1 / 30)] * (4 if number in zeroed_at else 3), number)
        if number in zeroed_at:
            sent.micro_batches[1].fresh = True
        sent.batches = drawn and (drawn if number in zeroed_at else 3)
        windows.append(facts(sent))
    finding = finding_of("loop.discarded_microbatches", *windows)
    assert finding is not None and finding.severity == severity


def zeroes_another_call(
    at: tuple[int, ...], data: list[float], drawn: int | None = None, divisor: float = 3.0
) -> list[StepFacts]:
    """Windows of 3 micro-batches; at these steps the gradient of another call is zeroed before."""
    windows = []
    zeroed = iter(data)
    for number in range(1, 13):
        extra = number in at
        weights = [1 / 10 / divisor] * extra + [1 / 30] * 3
        sent = record([term(10, weight) for weight in weights], number, batches=drawn)
        for index, micro_batch in enumerate(sent.micro_batches):
            is_zeroed = extra and index == 0
            micro_batch.call, micro_batch.constant_target = 1 if is_zeroed else 2, False
            micro_batch.fingerprint = next(zeroed) if is_zeroed else 100.0 * number + index
        if extra:
            sent.micro_batches[1].fresh = True
        windows.append(facts(sent))
    return windows


@pytest.mark.parametrize(
    ("data", "drawn", "divisor", "severity"),
    [
        ([1.0, 1.0, 1.0, 1.0], None, 3.0, "info"),  # held to measure gradients
        ([1.0, 1.0, 1.0, 1.0], 3, 3.0, "info"),  # the first one looked like the tail of an epoch
        ([1.0, 2.0, 3.0, 4.0], None, 1.0, "info"),  # other data, which is not divided by K
        ([1.0, 2.0, 3.0, 4.0], None, 3.0, "warning"),  # training data
        ([1.0, 2.0, 3.0, 4.0], 3, 3.0, "warning"),
    ],
)
def test_gradients_of_another_call_are_measured_if_the_loss_or_its_data_shows_it(
    data: list[float], drawn: int | None, divisor: float, severity: str
) -> None:
    steps = zeroes_another_call((3, 6, 9, 12), data, drawn, divisor)
    finding = finding_of("loop.discarded_microbatches", *steps)
    assert finding is not None and finding.severity == severity


@pytest.mark.parametrize(
    ("divisor", "calls", "loaders", "rule", "severity"),
    [
        # a probe on new data before each step
        (1.0, (1, 2), [], "loop.discarded_microbatches", "info"),
        (1.0, (1, 2), [1], "loop.discarded_microbatches", "info"),
        # from a loader of its own, or another task
        (1.0, (1, 2), [1, 1], "loop.discarded_microbatches", "warning"),
        (1.0, (1, 2), [2, 1], "loop.zeroed_every_microbatch", "error"),  # both are training data
        (1.0, (1, 1), [], "loop.zeroed_every_microbatch", "error"),
        # divided by the number of both
        (2.0, (1, 2), [], "loop.zeroed_every_microbatch", "error"),
    ],
)
def test_a_whole_loss_of_another_call_before_each_step_is_measured(
    divisor: float, calls: tuple[int, int], loaders: list[int], rule: str, severity: str
) -> None:
    steps = []
    for number in range(1, 13):
        weights = [1 / 10 / divisor] * 2
        sent = record([term(10, weight) for weight in weights], number, loader_batches=loaders)
        for index, micro_batch in enumerate(sent.micro_batches):
            micro_batch.call, micro_batch.fresh = calls[index], True
            micro_batch.constant_target = False
            micro_batch.fingerprint = 100.0 * number + index
        steps.append(facts(sent))
    findings = {f.rule: f.severity for f in judged(steps).findings if not f.inhibited_by}
    assert findings.get(rule) == severity
    assert len([severity for severity in findings.values() if severity != "info"]) <= 1


@pytest.mark.parametrize("data", [1.0, 3.0])
def test_the_last_data_of_a_list_is_lost_where_the_first_comes_next(data: float) -> None:
    """Although it is the same each time."""
    steps = []
    for number in range(1, 10):
        ends = number > 1 and number % 3 == 1  # an epoch of 3 windows has ended
        sent = record([term(10, 1 / data / 10)] * ends + [term(10, 1 / 30)] * 3, number)
        for index, micro_batch in enumerate(sent.micro_batches, start=-int(ends)):
            micro_batch.call, micro_batch.constant_target = 1 if index < 0 else 2, False
            micro_batch.fingerprint = 1.0 if index < 0 else 100.0 * (1 + number % 3) + index
        if ends:
            sent.micro_batches[1].fresh = True
        steps.append(facts(sent))
    finding = finding_of("loop.discarded_microbatches", *steps)
    assert finding is not None and finding.severity == "warning"


def zeroing(ranks: tuple[int, ...], of: int, held: int, zeroed: int = 1) -> StepFacts:
    """These ranks have zeroed micro-batches before those that are applied; the others hold 2."""
    records = []
    for rank in range(of):
        mine = record([term(10, 0.1)] * (held if rank in ranks else 2), 2)
        if rank in ranks:
            mine.micro_batches[zeroed].fresh = True
        records.append(mine)
    return facts(*records)


@pytest.mark.parametrize(
    ("ranks", "of", "where"),
    [
        ((0,), 2, "Gradients are zeroed on rank 0, and not on rank 1"),
        ((1,), 2, "Gradients are zeroed on rank 1, and not on rank 0"),
        ((0, 1), 3, "Gradients are zeroed on ranks 0, 1, and not on rank 2"),
    ],
)
def test_ranks_with_further_backwards_may_measure_gradients(
    ranks: tuple[int, ...], of: int, where: str
) -> None:
    finding = finding_of("loop.discarded_microbatches", zeroing(ranks, of, held=3))
    assert finding is not None and finding.severity == "info"
    assert finding.title == where
    assert f"of {len(ranks)} micro-batch" in finding.summary


@pytest.mark.parametrize("ranks", [(0,), (1,)])
def test_ranks_that_zero_a_part_of_what_the_others_apply_lose_it(ranks: tuple[int, ...]) -> None:
    finding = finding_of("loop.discarded_microbatches", zeroing(ranks, 2, held=2))
    assert finding is not None and finding.severity == "warning"
    assert finding.summary.startswith(f"On rank {ranks[0]}, the gradients of 1 micro-batch (10 ")
    assert finding.summary.endswith(f"Rank {1 - ranks[0]} has zeroed none in this window.")


def test_what_all_ranks_discard_is_lost() -> None:
    finding = finding_of("loop.discarded_microbatches", zeroing((0, 1), 2, held=2))
    assert finding is not None
    assert finding.summary.startswith("The gradients of 1 micro-batch")


def test_elements_that_were_discarded_are_those_of_one_loss_if_the_losses_count_differently() -> (
    None
):
    for boxes, text in ((4, "10 elements of the loss with the most elements"), (10, "10 elements")):
        losses = [term(10, 0.1), term(boxes, 0.1, kind="MseLossBackward0")]
        lost = record([losses, losses], 2)
        lost.micro_batches[1].fresh = True
        finding = finding_of("loop.discarded_microbatches", facts(lost))
        assert finding is not None
        assert f" of 1 micro-batch ({text}) were zeroed" in finding.summary


def test_a_loop_that_had_a_reason_to_discard_them_is_left_alone() -> None:
    assert discarded_windows(math.inf) is None
    assert discarded_windows(math.nan) is None
    assert discarded_windows(loss=math.nan) is None


@pytest.mark.parametrize(
    ("applied", "reported"),
    [(["MseLossBackward0"], True), ([CROSS_ENTROPY], False), ([CROSS_ENTROPY, "Mse"], False)],
)
def test_a_loss_that_was_zeroed_while_another_of_the_same_data_was_applied_is_information(
    applied: list[str], reported: bool
) -> None:
    """Unlike SAM, and unlike weights of tasks that follow from the gradient of each."""
    sent = record([term(10, 0.1), [term(10, 0.1, kind=kind) for kind in applied]], 2)
    sent.micro_batches[1].fresh = True
    for micro_batch in sent.micro_batches:
        micro_batch.fingerprint, micro_batch.constant_target = 3.0, False
    steps = facts(sent), facts(dataclasses.replace(sent, step=3))
    assert finding_of("loop.zeroed_every_microbatch", *steps) is None
    finding = finding_of("loop.discarded_microbatches", *steps)
    assert (finding is not None) == reported
    if finding is not None:  # it may be measured only
        assert finding.severity == "info"
        assert finding.title == "The gradients of another loss on the same data are zeroed"


def test_a_loop_that_also_steps_after_one_micro_batch_accumulates_nothing_to_discard() -> None:
    lost = record([term(10, 0.1), term(10, 0.1)], 2)
    lost.micro_batches[1].fresh = True
    single = facts(record([term(10, 0.1)], 1))
    assert finding_of("loop.discarded_microbatches", single, facts(lost)) is None
    several = [facts(record([term(10, 0.05)] * 2, number)) for number in range(2, 9)]
    few = [single, *several, facts(dataclasses.replace(lost, step=9))]
    assert finding_of("loop.discarded_microbatches", *few) is not None
    steps = [facts(lost), facts(record([term(10, 0.05)] * 2, 3))]
    assert finding_of("loop.discarded_microbatches", *steps) is not None


def test_a_step_on_several_micro_batches_shows_that_the_loop_accumulates() -> None:
    """As after a warm-up of the accumulation, which begins with steps on one micro-batch."""
    single = [facts(record([term(10, 0.1)], number)) for number in range(1, 5)]
    lost = record([term(10, 0.1), term(10, 0.05), term(10, 0.05)], 5)
    lost.micro_batches[1].fresh = True
    assert finding_of("loop.discarded_microbatches", *single, facts(lost)) is not None


def test_equal_targets_that_do_not_depend_on_the_data_are_not_the_same_data_again() -> None:
    """The targets of a contrastive loss are 0, 1, 2, ... in every micro-batch."""
    for targets_are_constant in (True, False):
        lost = record([term(10, 0.1), term(10, 0.1)], 2)
        for batch in lost.micro_batches:
            batch.fresh, batch.fingerprint = True, 3.0
            batch.constant_target = batch.consecutive_target = targets_are_constant
        finding = finding_of("loop.discarded_microbatches", facts(lost))
        assert (finding is not None) is targets_are_constant


@pytest.mark.parametrize("rule", ["loop.discarded_microbatches", "loop.zeroed_every_microbatch"])
def test_gradients_in_other_buffers_that_a_loop_combines_are_not_called_discarded(
    rule: str,
) -> None:
    """What is stepped on is no multiple of the sum of what the last backwards left."""
    steps = []
    for number in (1, 2):
        sent = record([term(10, 0.1), term(10, 0.1)], number, post_factor=None, sync="unknown")
        sent.collectives_after = 3
        for batch in sent.micro_batches:
            batch.fresh = True
        sent.samples = Samples([1.0, -2.0, 0.5, 3.0], [1.0, 1.0, 0.7, 0.2])
        steps.append(facts(sent, sent))
    assert finding_of(rule, *steps) is None
    assert judged(steps).coverage[rule].startswith("not_measured: the ranks' gradients were")


def test_a_second_step_on_the_same_gradients_does_not_hide_what_was_zeroed() -> None:
    steps = []
    for number in (1, 3):
        lost = record([term(7, 1 / 14), term(5, 1 / 10)], number)
        for batch in lost.micro_batches:
            batch.fresh = True
        steps += [facts(lost), facts(record([], number + 1, repeat=True))]
    assert finding_of("loop.zeroed_every_microbatch", *steps) is not None
    assert finding_of("loop.double_step", *steps) is not None


@pytest.mark.parametrize(
    ("weight", "is_reported"),
    [(0.05, True), (0.1, False)],  # every second batch may be meant for this optimizer
)
def test_gradients_of_the_second_optimizer_alone_are_zeroed_if_k_divides_the_loss(
    weight: float, is_reported: bool
) -> None:
    steps = []
    for number in (1, 2):
        lost = record([term(10, weight), term(10, weight)], number)
        for batch in lost.micro_batches:
            batch.fresh = batch.claimed = True  # the first optimizer has stepped on both
        steps.append(facts(lost))
    finding = finding_of("loop.zeroed_every_microbatch", *steps)
    assert (finding is not None) is is_reported


@pytest.mark.parametrize("loss", [math.nan, 1.5])
def test_a_guard_that_drops_every_other_batch_zeroes_only_what_is_not_finite(loss: float) -> None:
    steps = []
    for number in (1, 2, 3):
        dropped = record([term(10, 0.1), term(10, 0.1)], number)
        for batch in dropped.micro_batches:
            batch.fresh = True
        dropped.micro_batches[0].loss = loss
        steps.append(facts(dropped))
    finding = finding_of("loop.zeroed_every_microbatch", *steps)
    assert (finding is None) is math.isnan(loss)


@pytest.mark.parametrize("rule", ["loop.discarded_microbatches", "loop.zeroed_every_microbatch"])
@pytest.mark.parametrize(
    ("lengths", "divided", "is_reported"),
    [
        ((3, 3, 2, 2), False, True),  # what a guard drops may look like K
        ((3, 3, 2, 2, 4, 5), False, True),  # a budget of tokens for each window, or a K that grows
        ((3, 3, 2, 4, 1, 5), False, False),  # no K explains these lengths
        ((3, 2, 2, 2, 2, 4, 1, 5), False, True),  # most are as long as the one before
        ((3, 3, 2, 2, 4, 5), True, True),  # a loop that divides by the number of each window does
        ((9, 4, 4, 6, 4, 6), False, True),  # the tail of an epoch begins the next window
    ],
)
def test_windows_of_all_lengths_show_a_guard_unless_the_loss_is_divided(
    lengths: tuple[int, ...], divided: bool, is_reported: bool, rule: str
) -> None:
    steps = []
    for number, length in enumerate(lengths, 1):
        sent = record([term(10, 0.1 / (length if divided else 1))] * length, number)
        for batch in sent.micro_batches:
            batch.fresh = True
        steps.append(facts(sent))
    assert (finding_of(rule, *steps) is not None) is is_reported
    if not is_reported:
        assert judged(steps).coverage[rule].startswith("not_measured: windows of many lengths")


@pytest.mark.parametrize("rule", ["loop.discarded_microbatches", "loop.zeroed_every_microbatch"])
def test_gradients_that_were_cleared_before_a_step_on_what_is_not_finite_may_be_in_buffers(
    rule: str,
) -> None:
    sent = record([term(10, 0.1), term(10, 0.1)], post_factor=None, skipped=True)
    sent.missing["post_factor"] = "the sampled gradients are not finite"
    for batch in sent.micro_batches:
        batch.fresh = True
    assert finding_of(rule, facts(sent)) is None
    reason = "not_measured: the sampled gradients are not finite"
    assert judged([facts(sent)]).coverage[rule] == reason


# ---------------------------------------------------------------------- clips, zeroes, steps


def clipped(*clips: Event, kept_from: int = 0, total: int = 4) -> Finding | None:
    step_record = record([term(10, 1 / (10 * total)) for _ in range(total)], events=list(clips))
    step_record.micro_batches[kept_from].fresh = True
    return finding_of("loop.clip_every_microbatch", facts(step_record))


@pytest.mark.parametrize(
    ("clip", "is_reported"),
    [
        (Event("clip_norm", 1, limit=0.5, norm=1.0), True),
        (Event("clip_value", 3, limit=0.5), True),
        (Event("clip_norm", 1, limit=0.5, norm=1.0, own=False), False),
        (Event("unscale", 1), False),
        (Event("clip_norm", 4, limit=0.5, norm=1.0), False),
        (Event("clip_norm", 1, limit=math.inf, norm=1.0), False),
        (Event("clip_norm", 1, norm=1.0), False),
    ],
)
def test_a_finite_clip_of_this_optimizer_before_the_last_backward_is_reported(
    clip: Event, is_reported: bool
) -> None:
    assert (clipped(clip) is not None) is is_reported


def test_a_clip_of_what_was_discarded_afterwards_is_left_alone() -> None:
    assert clipped(Event("clip_norm", 2, limit=0.5, norm=1.0), kept_from=2) is None
    assert clipped(Event("clip_norm", 3, limit=0.5, norm=1.0), kept_from=2) is not None


def test_of_several_clips_the_first_is_reported_with_what_all_leave() -> None:
    clips = [Event("clip_norm", position, limit=0.5 * position, norm=2.0) for position in (1, 2)]
    finding = clipped(*clips)
    assert finding is not None
    assert finding.summary.startswith("The clip to 0.5 ran after micro-batch 1 of 4")
    assert finding.evidence["limit"] == 0.5
    assert finding.evidence["first_microbatch_left"] == pytest.approx(0.125)


def scaled_between(*windows: list[float | None]) -> bool:
    """Whether windows are reported, each with what scales the gradients between its backwards."""
    steps = []
    for number, factors in enumerate(windows, 1):
        step = record([term(10, 1 / 30) for _ in [0.0, *factors]], number)
        for micro_batch, factor in zip(step.micro_batches[1:], factors, strict=True):
            micro_batch.rescaled = factor
        steps.append(facts(step))
    return "loop.clip_every_microbatch" in {f.rule for f in judged(steps).findings}


def test_a_clip_by_hand_between_backwards_is_reported() -> None:
    assert scaled_between([0.5, 0.6], [0.7, None])
    assert scaled_between([0.5], [0.7])
    assert not scaled_between([0.5, 0.6])  # needs another window
    assert not scaled_between([0.5, 0.6], [0.5, 0.6])  # the same in each
    assert not scaled_between([0.9, 0.9], [0.8, 0.8])  # moving averages
    assert not scaled_between([0.5, 0.6], [2.0, 0.4])  # a clip does not enlarge


def test_losses_of_the_backward_before_and_further_ones_are_a_running_total() -> None:
    def backwards(*added: list[Term], fresh: bool = False) -> Finding | None:
        """Each has the losses of the one before, and further ones."""
        earlier: list[Term] = []
        batches = []
        for terms in added:
            batches.append([*(dataclasses.replace(t, again=True) for t in earlier), *terms])
            earlier += terms
        step = record(batches)
        for batch in step.micro_batches[1:]:
            batch.fresh = fresh
        return finding_of("loop.losses_added_again", facts(step))

    loss, other = term(10, 0.1), term(10, 0.1, kind="MseLossBackward0")
    finding = backwards([loss], [loss], [loss])
    assert finding is not None
    assert finding.summary.endswith("differentiated 3 times, that which the last one added once.")
    assert backwards([loss, other], [loss, other]) is not None
    assert backwards([loss]) is None
    assert backwards([loss], [loss], fresh=True) is None  # zeroed in between
    assert backwards([loss], [other]) is None  # other losses are added to the first
    tasks = backwards([loss], [other], [loss])  # a total over tasks
    assert tasks is not None and tasks.severity == "warning" and finding.severity == "error"
    assert backwards([loss], []) is None  # the same backward again
    assert finding_of("loop.losses_added_again", facts(record([[loss], [loss] * 2]))) is None
    for added in ([loss, loss, loss], [loss, other, loss]):  # blocks, each trained with inputs=
        batches: list[list[Term]] = [[]]
        for each in added:
            earlier = [
                dataclasses.replace(t, again=True, weight=None, missing={"weight": UNREACHED})
                for t in batches[-1]
            ]
            batches.append([*earlier, each])
        assert finding_of("loop.losses_added_again", facts(record(batches[1:]))) is None


@pytest.mark.parametrize(
    ("norms", "losses", "fresh", "repeated"),
    [
        ((0.5, 0.5), (2.0, 2.0), False, True),
        ((0.5, 0.5), (2.0, 2.0), True, False),  # zeroed in between
        ((0.5, 0.7), (2.0, 2.0), False, False),  # for other parameters, with inputs=
        ((0.5, 0.5), (None, None), False, False),  # other rows of a vector
        ((None, 0.5), (2.0, 2.0), False, False),
        ((0.0, 0.0), (2.0, 2.0), False, False),
    ],
)
def test_backward_again_on_the_same_loss(
    norms: tuple[float | None, float],
    losses: tuple[float | None, float | None],
    fresh: bool,
    repeated: bool,
) -> None:
    loss = term(10, 0.1)
    step = record([[loss], [dataclasses.replace(loss, again=True)]])
    for batch, norm, value in zip(step.micro_batches, norms, losses, strict=True):
        batch.sample_norm, batch.loss, batch.fresh = norm, value, fresh
    found = finding_of("loop.losses_added_again", facts(step))
    assert (found is not None) is repeated
    assert found is None or found.title == "Backward is called again on the same loss"
    # nothing else is stated of one loss that is differentiated in parts
    if not repeated and not fresh and losses[0] is not None:
        assert diagnose(facts(step), [])[0].reason == IN_PARTS


@pytest.mark.parametrize(
    ("weight", "factor", "shown", "repeated"),
    [
        (0.1, 1.0, {}, True),
        (0.05, 1.0, {}, False),  # each backward has half of the loss
        (0.1, 0.5, {}, False),  # the loop halved the gradients
        (0.2, 0.5, {}, False),  # and the balance has another cause
        (0.1, 1.0, {"coefficient": 2.0}, False),  # half of a loss with a weight of 2
        (0.1, 1.0, {"reduction": "sum", "undivided": True}, False),
        (0.2, 1.0, {}, False),
    ],
)
def test_a_repeated_backward_is_named_if_the_balance_shows_it(
    weight: float, factor: float, shown: dict[str, Any], repeated: bool
) -> None:
    loss = term(10, weight, **shown)
    step = record([[loss], [dataclasses.replace(loss, again=True)]], post_factor=factor)
    for batch in step.micro_batches:
        batch.sample_norm, batch.loss, batch.fresh = 0.5, 2.0, False
    window = facts(step)
    assert (finding_of("loop.losses_added_again", window) is not None) is repeated
    assert (diagnose(window, [])[0].reason == ADDED_AGAIN) is repeated


def test_half_precision_rounds_the_sum_of_repeated_gradients() -> None:
    loss = term(10, 0.1)
    step = record([[loss], [dataclasses.replace(loss, again=True)]])
    for batch, norm in zip(step.micro_batches, (0.5, 0.503), strict=True):
        batch.sample_norm, batch.loss, batch.fresh = norm, 2.0, False
    assert finding_of("loop.losses_added_again", facts(step)) is None
    step.half_precision = True
    assert finding_of("loop.losses_added_again", facts(step)) is not None


def begun(
    number: int = 1,
    fresh: bool = True,
    claimed: tuple[int, ...] = (),
    kind: str = "MseLossBackward0",
) -> StepFacts:
    """A window of four that finds gradients or none, and may hold another loss's backwards."""
    step_record = record([term(10, 1 / 40) for _ in range(4)], number)
    step_record.micro_batches[0].fresh = fresh
    for index in claimed:
        step_record.micro_batches[index].claimed = True
        step_record.micro_batches[index].terms[0].kind = kind
    return facts(step_record)


def test_a_first_window_that_begins_on_old_gradients_is_reported() -> None:
    assert finding_of("loop.grads_not_zeroed", begun(fresh=False)) is not None


def test_old_gradients_after_steps_that_were_not_seen_may_be_those_of_a_skipped_one() -> None:
    assert finding_of("loop.grads_not_zeroed", begun(1), begun(3, fresh=False)) is None
    assert finding_of("loop.grads_not_zeroed", begun(1), begun(2, fresh=False)) is not None


@pytest.mark.parametrize(
    ("fresh", "apart"),
    [("10001000", 4), ("10001", None), ("1000000", None), ("100s000", None), ("1001000", 3)],
)
def test_gradients_that_are_zeroed_at_some_steps_may_end_an_accumulation(
    fresh: str, apart: int | None
) -> None:
    steps = []
    for number, each in enumerate(fresh, 1):
        step = record([term(10, 1 / 10)], number, skipped=each == "s")
        step.micro_batches[0].fresh = each == "1"
        steps.append(facts(step))
    finding = finding_of("loop.grads_not_zeroed", *steps)
    assert finding is not None
    assert (f"zeroed are {apart} steps apart" in finding.summary) == (apart is not None)
    assert ("apart" in finding.summary) == (finding.fix == FIX_APART) == (apart is not None)


def test_backwards_of_another_loss_that_leaked_in_are_reported_with_their_places() -> None:
    finding = finding_of("loop.grads_not_zeroed", begun(claimed=(2,)))
    assert finding is not None
    assert finding.title == "Gradients of another loss leak into the step"
    assert finding.summary == (
        "Another optimizer has already stepped on 1 of the 4 backwards of this window. Its "
        "gradients are still in the parameters of this optimizer, which applies them, too."
    )
    assert finding.evidence["leaked_micro_batches"] == [3]
    assert finding.fix == FIX_BETWEEN  # zeroed before this one, it is back after the own loss
    before = finding_of("loop.grads_not_zeroed", begun(claimed=(0,)))
    assert before is not None and before.fix == FIX_BEFORE
    left = finding_of("loop.grads_not_zeroed", begun(1), begun(2, fresh=False, claimed=(2,)))
    assert left is not None and left.summary == finding.summary + ALSO_NOT_ZEROED
    assert begun(claimed=(2,)).micro_batches == 3  # in no account of this optimizer's loss
    shared, same = begun(claimed=(0, 1, 2, 3)), begun(claimed=(0, 1, 2), kind=CROSS_ENTROPY)
    assert finding_of("loop.grads_not_zeroed", shared) is None
    assert finding_of("loop.grads_not_zeroed", same) is None  # it steps less often than the other
    for calls, leaks in (((1, 1, 2, 2), True), ((1, 2, 1, 2), False), ((1, 1, 1, 2), False)):
        lines = record([term(10, 1 / 40) for _ in calls])
        for index, micro_batch in enumerate(lines.micro_batches):
            micro_batch.call, micro_batch.claimed = calls[index], index < 2
        assert (finding_of("loop.grads_not_zeroed", facts(lines)) is not None) is leaks


@pytest.mark.parametrize("more", [{"skipped": True}, {"empty": True}])
def test_a_repeated_gradient_that_was_skipped_or_is_none_is_no_double_step(
    more: dict[str, Any],
) -> None:
    first = facts(record([term(10, 0.1)]))
    assert finding_of("loop.double_step", first, facts(record([], 2, repeat=True))) is not None
    assert finding_of("loop.double_step", first, facts(record([], 2, repeat=True, **more))) is None


@pytest.mark.parametrize(
    ("changes", "is_reported"),
    [
        ({}, True),
        ({"norm": 0.0}, True),
        ({"norm": 0.5}, False),
        ({"post_factor": 0.5}, False),
        ({"empty": False}, False),
        ({"skipped": True}, False),
    ],
)
def test_gradients_are_gone_where_a_step_finds_none_of_those_that_backward_made(
    changes: dict[str, Any], is_reported: bool
) -> None:
    fields: dict[str, Any] = {"norm": None, "post_factor": 0.0, "empty": True, **changes}
    step = facts(record([term(10, 0.1)], **fields))
    assert (finding_of("loop.zeroed_before_step", step) is not None) is is_reported
    nothing = facts(record([], **fields))
    assert finding_of("loop.zeroed_before_step", nothing) is None


# ---------------------------------------------------------------------- clips that always engage


def engaged(
    *norms: float, after: str | None = None, at: int = 1, divisor: float = 1.0
) -> Finding | None:
    """A clip to 1 in each window, which saw these norms; another call, or a division after it."""
    steps = []
    for number, norm in enumerate(norms, 1):
        events = [Event("clip_norm", at, limit=1.0, norm=norm, factor=1.0)]
        if after is not None:
            events.append(Event(after, 1))  # type: ignore[arg-type]
        factor = min(1.0, 1 / norm) / divisor
        steps.append(facts(record([term(10, 0.1)], number, events=events, post_factor=factor)))
    return finding_of("clip.always_engaged", *steps)


def test_more_than_nineteen_of_twenty_clips_that_limit_are_reported() -> None:
    assert engaged(*[0.5] * 10, *[2.0] * 190) is None
    finding = engaged(*[0.5] * 9, *[2.0] * 191)
    assert finding is not None and finding.evidence["share"] == 191 / 200
    assert engaged(*[2.0] * 200, after="unscale") is not None
    assert engaged(*[0.5] * 200) is None


def test_a_clip_after_the_step_is_not_counted_and_one_before_a_division_as_if_it_followed() -> None:
    assert engaged(*[2.0] * 200, at=0) is None
    assert engaged(*[2.0] * 200, divisor=4.0) is None
    assert engaged(*[8.0] * 200, divisor=4.0) is not None


def test_clips_count_in_the_last_two_hundred_steps_only() -> None:
    finding = engaged(*[0.5] * 100, *[2.0] * 200)
    assert finding is not None and finding.last_step == 300
    assert finding.evidence["share"] == 1.0


# ---------------------------------------------------------------------- schedules and orders


def scheduled(*after: int, total: int = 2) -> Finding | None:
    events = [Event("schedule", position, own=False) for position in after]
    step_record = record([term(10, 1 / (10 * total)) for _ in range(total)], events=events)
    return finding_of("scheduler.step_every_microbatch", facts(step_record))


def severity_at(
    *lr_at_steps: float | list[float], made: int, total: int | None, every: int = 1
) -> str:
    """At the last of some steps, with a schedule that moves on each backward."""
    steps = []
    for number, lr in enumerate(lr_at_steps):
        events = [Event("schedule", 1, own=False)]
        sent = record([term(10, 0.1)] * 2, 1 + every * number, events=events)
        sent.lr, sent.lrs = (lr[0], lr) if isinstance(lr, list) else (lr, [])
        steps.append(facts(sent))
    steps[-1].record.scheduled, steps[-1].record.schedule_total = made, total
    finding = finding_of("scheduler.step_every_microbatch", *steps)
    return finding.severity if finding else "none"


def test_a_schedule_is_stepped_too_often_for_certain_once_it_has_ended() -> None:
    """Until then it may be planned in micro-batches, as OneCycleLR is documented to be."""
    assert severity_at(0.1, 0.05, made=3, total=64) == "info"
    assert severity_at(0.1, 0.05, made=64, total=64) == "info"
    assert severity_at(0.1, 0.05, made=79, total=64) == "info"
    assert severity_at(0.1, 0.05, made=80, total=64) == "warning"
    assert severity_at(0.1, 0.05, made=80, total=None) == "info"
    assert severity_at(0.1, 0.0, made=3, total=None) == "info"
    assert severity_at(0.1, 0.0, 0.0, made=5, total=None) == "warning"


def test_a_rate_of_zero_ends_a_schedule_only_where_all_rates_came_down_to_it() -> None:
    assert severity_at([0.1, 0.2], [0.0, 0.0], [0.0, 0.0], made=5, total=None) == "warning"
    assert severity_at([0.1, 0.2], [0.0, 0.1], [0.0, 0.1], made=5, total=None) == "info"
    assert severity_at(0.0, 0.0, 0.0, made=5, total=None) == "info"  # never above
    assert severity_at(0.1, 0.0, 0.1, 0.0, made=5, total=None) == "info"
    assert severity_at(0.1, 0.0, 0.0, made=5, total=None, every=4) == "info"  # steps between


def test_a_schedule_that_moves_between_all_backwards_of_a_window_is_reported() -> None:
    assert scheduled(1, 2) is not None
    assert scheduled(1) is not None
    assert scheduled(2) is None
    assert scheduled(1, total=1) is None
    assert scheduled(1, 3, total=3) is None


def moved_by_hand(
    *rates: list[float], k: int = 4, first: int = 1, scheduled: int | None = None
) -> tuple[str, int]:
    """Severity and steps since, after steps at which a loop sets the rate of each micro-batch."""
    steps = []
    for number, of_micro_batches in enumerate(rates, first):
        moves = sum(a != b for a, b in itertools.pairwise(of_micro_batches))
        sent = record([term(10, 0.1)] * k, number, lr=of_micro_batches[-1], rate_moves=moves)
        sent.scheduled = scheduled
        steps.append(facts(sent))
    finding = finding_of("scheduler.step_every_microbatch", *steps)
    return (finding.severity, finding.evidence["steps_since"]) if finding else ("none", 0)


def linear(steps: int, floor: float, k: int = 4, planned: int = 24) -> list[list[float]]:
    """A plan in optimizer steps, looked up by micro-batch."""
    rates = [max(floor, 1 - i / planned) for i in range(k * steps)]
    return [rates[i : i + k] for i in range(0, len(rates), k)]


def test_a_rate_by_micro_batch_that_came_to_its_end_early_is_reported() -> None:
    assert moved_by_hand(*linear(20, 0.1)) == ("warning", 14)
    assert moved_by_hand(*linear(24, 0.0)) == ("warning", 17)
    assert moved_by_hand(*linear(19, 0.1)) == ("none", 0)
    assert moved_by_hand(*linear(20, 0.1, k=2, planned=20), k=2) == ("info", 10)
    assert moved_by_hand(*linear(28, 0.1, k=2, planned=20), k=2) == ("info", 18)


def held(steps: int, by: int, k: int = 4) -> list[list[float]]:
    """A warm-up over 10 steps, a hold and a decay from 60 to 80; ``by``: what counts as one."""
    rates = [max(0.1, min(1.0, i / 10, 4 - i / 20)) for i in (n // by for n in range(k * steps))]
    return [rates[i : i + k] for i in range(0, len(rates), k)]


def test_a_rate_by_micro_batch_that_is_held_in_between_is_reported() -> None:
    assert moved_by_hand(*held(80, by=1)) == ("warning", 60)
    assert moved_by_hand(*held(80, by=4)) == ("none", 0)
    assert moved_by_hand(*held(80, by=3)) == ("none", 0)


def test_a_rate_by_micro_batch_that_moves_or_stays_high_is_in_order() -> None:
    assert moved_by_hand(*linear(40, 0.1, planned=160)) == ("none", 0)
    warmup = [[1 - rate for rate in rates] for rates in linear(40, 0.0)]
    assert moved_by_hand(*warmup) == ("none", 0)
    by_step = [[max(0.1, 1 - step / 10)] * 4 for step in range(60)]
    assert moved_by_hand(*by_step) == ("none", 0)
    dropped_later = [*warmup[:20], *[[0.1] * 4] * 100]
    assert moved_by_hand(*dropped_later) == ("none", 0)
    of_pytorch = moved_by_hand(*linear(20, 0.1), scheduled=12)  # which the loop steps at times
    assert of_pytorch == ("none", 0)


def advancing(by: int, *, total: int, steps: int = 12, **run: Any) -> Finding | None:
    sent = [
        record([term(10, 1.0)], n, events=[Event("schedule", 0, own=False)] * by)
        for n in range(1, steps + 1)
    ]
    for n, each in enumerate(sent):
        each.scheduled, each.schedule_total = by * n, total
    return finding_of("scheduler.step_every_microbatch", *(facts(each, **run) for each in sent))


def test_a_prepared_scheduler_that_steps_once_for_each_process_gets_the_fix_for_it() -> None:
    accelerate: dict[str, Any] = {"config": {"framework": "accelerate"}, "world_size": 4}
    finding = advancing(4, total=12, **accelerate)
    assert finding is not None and finding.fix == PREPARED_SCHEDULE
    several = advancing(2, total=6, **accelerate)
    assert several is not None and several.fix != PREPARED_SCHEDULE


def test_a_schedule_that_makes_several_steps_for_each_of_the_optimizer_ends_too_early() -> None:
    finding = advancing(4, total=12)
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "The LR scheduler makes 4 steps for each optimizer step"
    assert finding.evidence["schedule_steps"] == 44
    assert advancing(4, total=48) is None  # planned for all of them
    assert advancing(1, total=8) is None  # the training takes longer
    assert advancing(6, total=12, steps=3) is None  # at two steps, as where one was skipped
    assert advancing(6, total=12, steps=4) is not None


def advanced(course: str, first: int = 1) -> Finding | None:
    """Steps that are taken (.) or skipped (x); the schedule advances before the next."""
    steps = []
    for number, each in enumerate(course, first):
        step_record = record([term(10, 0.1)], number, skipped=each == "x")
        step_record.events = [Event("schedule", 0, own=False)] if number > 1 else []
        steps.append(facts(step_record))
    return finding_of("scheduler.stepped_on_skip", *steps)


@pytest.mark.parametrize(
    ("course", "severity"),
    [
        ("x.", "info"),
        ("x.x.", "info"),
        ("x.x.x.", "warning"),
        ("." * 54 + "x.x.x.", "warning"),  # of 59 advances
        ("." * 55 + "x.x.x.", "info"),
    ],
)
def test_three_advances_on_skipped_steps_are_a_warning_where_they_are_more_than_a_twentieth(
    course: str, severity: str
) -> None:
    finding = advanced(course)
    assert finding is not None and finding.severity == severity


def test_an_advance_before_which_no_step_was_seen_is_not_known_to_follow_a_skipped_one() -> None:
    assert advanced("..") is None
    assert advanced("..", first=2) is None
    apart = [record([term(10, 0.1)], n, events=[Event("schedule", 0)]) for n in (1, 5)]
    assert finding_of("scheduler.stepped_on_skip", *map(facts, apart)) is None


def ordered(*prints: int, constant: Callable[[int], bool] = lambda _: False) -> Finding | None:
    """One micro-batch with each fingerprint, of a sampler that shuffles."""
    steps = []
    for number, each in enumerate(prints, 1):
        step_record = record([term(10, 0.1)], number, sampler="random")
        step_record.micro_batches[0].fingerprint = each
        step_record.micro_batches[0].constant_target = constant(each)
        steps.append(facts(step_record))
    return finding_of("data.same_order_each_epoch", *steps)


def test_four_micro_batches_in_the_same_order_again_are_reported_and_three_are_not() -> None:
    finding = ordered(1, 2, 3, 4, 1, 2, 3, 4)
    assert finding is not None and finding.evidence["period"] == 4
    assert ordered(1, 2, 3, 1, 2, 3, 1, 2, 3) is None
    assert ordered(1, 2, 3, 4, 1, 2, 4, 3) is None


def test_targets_that_do_not_depend_on_the_data_show_no_order() -> None:
    """Real and fake of a GAN, one after another; the last batch of each epoch is shorter."""
    constant = [*(11, 10) * 15, 21, 20] * 6
    assert ordered(*constant, constant=lambda _: True) is None
    assert ordered(*constant[1::2]) is None  # both in one batch: they do not look constant


def test_micro_batches_between_that_are_constant_are_left_out() -> None:
    finding = ordered(*[1, 9, 2, 9, 3, 9, 4, 9, 5, 9] * 3, constant=lambda each: each == 9)
    assert finding is not None and finding.evidence["period"] == 5


def epochs(labels: int, batches: int, count: int, shuffled: bool) -> list[int]:
    """Fingerprints of epochs over batches of few labels."""
    chance = random.Random(7)
    epoch = [chance.randrange(labels) for _ in range(batches)]
    orders = [chance.sample(epoch, batches) if shuffled else epoch for _ in range(count)]
    return [each for order in orders for each in order]


def test_an_order_that_repeats_is_found_although_many_batches_look_alike() -> None:
    finding = ordered(*epochs(labels=3, batches=80, count=3, shuffled=False))
    assert finding is not None and finding.evidence["period"] == 80


@pytest.mark.parametrize("labels", [2, 3, 5])
def test_batches_of_few_labels_that_repeat_by_chance_are_no_finding(labels: int) -> None:
    assert ordered(*epochs(labels, batches=60, count=10, shuffled=True)) is None


# ---------------------------------------------------------------------- norms that grow


def growing(steps: int, factor: float = 1.6, loss: float = 1.1) -> Finding | None:
    """Norm and loss that grow step by step after ten calm ones."""
    course = [(1.0, 2.0)] * 10 + [(factor**n, 2.0 * loss**n) for n in range(1, steps + 1)]
    windows = []
    for number, (norm, value) in enumerate(course, 1):
        step_record = record([term(8, 1 / 8)], number, norm=norm)
        step_record.micro_batches[0].loss = value
        windows.append(facts(dataclasses.replace(step_record, time=float(number))))
    return finding_of("norm.exploding", *windows)


def test_eight_steps_of_growth_in_a_row_are_reported_and_seven_are_not() -> None:
    assert growing(Exploding.growing - 1) is None
    finding = growing(Exploding.growing)
    assert finding is not None and finding.first_step == 10 + Exploding.growing


def test_a_norm_that_grows_tenfold_or_with_a_falling_loss_is_no_explosion() -> None:
    assert growing(8, factor=10 ** (1 / 8.1)) is None
    assert growing(8, factor=10 ** (1 / 7.9)) is not None
    assert growing(8, loss=0.9) is None
    assert growing(8, loss=1.0) is None
    assert growing(8, loss=math.nan) is not None


def test_growth_from_the_first_step_on_is_counted_from_there() -> None:
    def course(windows: int) -> Finding | None:
        steps = []
        for number in range(1, windows + 1):
            step_record = record([term(8, 1 / 8)], number, norm=1.6**number)
            step_record.micro_batches[0].loss = float(number)
            steps.append(facts(step_record))
        return finding_of("norm.exploding", *steps)

    assert course(Exploding.growing) is None
    assert course(Exploding.growing + 1) is not None


def far_above(steps: int, norm: float, *early: float) -> Finding | None:
    """A hundred steps at 1 or so, then some at another norm, under a loss that stays."""
    course = [*(early or [1.0] * 100), *[norm] * steps]
    windows = [facts(record([term(8, 1 / 8)], n, norm=each)) for n, each in enumerate(course, 1)]
    return finding_of("norm.exploding", *windows)


def test_ten_steps_at_more_than_ten_times_the_largest_early_norm_are_reported() -> None:
    assert far_above(9, 11.0) is None
    finding = far_above(10, 11.0)
    assert finding is not None and finding.first_step == 110
    assert far_above(20, 10.0) is None
    assert far_above(20, 11.0, *[1.0] * 60, *[2.0] * 40) is None
    assert far_above(20, 11.0, *[1.0] * 99, 2.0) is None
    assert far_above(20, 21.0, *[1.0] * 99, 2.0) is not None


def guarded(
    steps: int, every: int, value: float = math.nan, *, moved: bool = False
) -> Finding | None:
    """A loss has this value in the window before each ``every``-th step, and a guard drops it."""
    windows = []
    for number in range(1, steps + 1):
        dropped = number % every == 0
        sent = record([term(10, 0.1)] * (1 + dropped), number)
        if dropped:
            sent.micro_batches[0].loss, sent.micro_batches[1].fresh = value, True
            sent.micro_batches[0].parameters_changed = moved
        windows.append(facts(sent))
    return finding_of("loop.dropped_windows", *windows)


def test_a_guard_that_drops_many_windows_is_reported_with_their_number() -> None:
    finding = guarded(60, 2)
    assert finding is not None
    assert finding.summary == (
        "30 of the last 90 windows were zeroed without a step, after a loss or a norm that was "
        "not finite. Their data was not used."
    )


def test_a_guard_that_drops_some_windows_is_information() -> None:
    finding = guarded(54, 9)
    assert finding is not None and finding.severity == "info"
    assert finding.summary.startswith("6 of the last 60 windows (10.0%) were zeroed without")
    for steps, every in ((60, 5), (18, 2)):
        some = guarded(steps, every)
        assert some is not None and some.severity == "info"
    assert guarded(95, 20) is None  # 4
    assert guarded(500, 25) is None  # 3.8%


def test_windows_that_are_dropped_without_a_reason_are_information() -> None:
    finding = guarded(60, 2, value=3.0)
    assert finding is not None and finding.severity == "info"
    assert finding.summary.startswith("The gradients of 30 of the last 90 windows were zeroed")
    assert guarded(60, 6, value=3.0) is None
    assert guarded(60, 1, value=3.0) is None  # before each step: no guard
    assert guarded(60, 2, value=3.0, moved=True) is None  # the loop updates by itself in between


def limited(
    steps: int,
    every: int,
    *,
    length: int = 2,
    clipped: bool = True,
    norm: float = 5.0,
    turns: tuple[int, ...] = (1,),
) -> set[str]:
    """Rules that report a guard on the norm, which drops windows before each ``every``-th.

    ``turns``: how many, in turn.
    """
    windows = []
    for number in range(1, steps + 1):
        dropped = length * (turns[number % len(turns)] if number % every == 0 else 0)
        sent = record([term(10, 1 / 20)] * (2 + dropped), number)
        ends = range(length, dropped + 1, length)
        for end in ends:
            sent.micro_batches[end].fresh = True
        if clipped:
            norms = {**dict.fromkeys(ends, norm), len(sent.micro_batches): 3.0}
            sent.events = [Event("clip_norm", end, norm=each) for end, each in norms.items()]
        windows.append(facts(sent))
    named = [f for f in judged(windows).findings if f.rule.startswith("loop.d")]
    assert all(f.severity == "warning" for f in named)
    return {f.rule for f in named}


@pytest.mark.parametrize(
    ("before", "after", "is_lost"), [(512, 256, False), (512, 512, True), (64, 32, True)]
)
def test_windows_after_which_a_loss_scale_by_hand_is_lowered_overflowed(
    before: float, after: float, is_lost: bool
) -> None:
    scales = [[before] * 2, [before] * 2 + [after] * 2, [after] * 2]
    windows = []
    for number, factors in enumerate(scales, 1):
        sent = record([term(10, factor / 20) for factor in factors], number)
        if len(factors) > 2:
            sent.micro_batches[2].fresh = True
        windows.append(facts(sent))
    named = {f.rule for f in judged(windows).findings}
    assert ("loop.discarded_microbatches" in named) is is_lost


def test_windows_whose_norm_was_measured_are_dropped_by_a_guard() -> None:
    assert limited(60, 2) == {"loop.dropped_windows"}
    assert limited(60, 10) == set()
    assert limited(60, 2, norm=2.0) == {"loop.discarded_microbatches"}  # not by a limit
    assert limited(60, 10, clipped=False) == {"loop.discarded_microbatches"}
    assert limited(60, 10, length=1) == {"loop.discarded_microbatches"}  # as an epoch's tail
    assert limited(20, 1) == set()  # the loop is made so
    assert limited(20, 1, turns=(1, 3)) == {"loop.dropped_windows"}


def left_open(
    number: int, backwards: int = 70, again: bool = False, **counts: Any
) -> Finding | None:
    left = LeftOpen(backwards, again=again, **counts)
    sent = record([], number, skipped=True, post_factor=None, left_open=left)
    return finding_of("loop.never_stepped", facts(sent))


def test_backwards_that_no_step_followed_are_an_error_if_the_loop_began_anew() -> None:
    for zeroed, severity in ((0, "warning"), (8, "error")):
        finding = left_open(1, zeroed=zeroed)
        assert finding is not None and finding.severity == severity
    assert left_open(5, zeroed=69, scaled=69) is None
    assert left_open(5, zeroed=7, scaled=70) is None
    assert left_open(5, zeroed=8, scaled=70) is not None  # as a guard that never calls update()
    assert left_open(5, backwards=0) is None  # something else changed the parameters
    assert left_open(5, zeroed=69) is None  # gradients may be measured after the training
    assert left_open(5, zeroed=69, norms=70, nonfinite_norms=34) is None
    assert left_open(5, zeroed=69, norms=70, nonfinite_norms=35) is not None
    piled_up = left_open(5, zeroed=0, trained=69)
    assert piled_up is not None and piled_up.severity == "warning"
    assert "All steps before together took at most 69 backwards." in piled_up.summary
    assert left_open(5, zeroed=0, trained=70) is None  # as one epoch after the training
    assert left_open(5, zeroed=1, trained=10) is None  # measured one by one
    assert left_open(5, zeroed=0, trained=10, inputs=8) is None  # as for a saliency map
    assert left_open(5, zeroed=69, again=True, inputs=8) is None
    assert left_open(5, zeroed=7, again=True) is None
    guarded = left_open(5, backwards=20, zeroed=19, again=True)
    assert guarded is not None and guarded.severity == "warning"
    assert guarded.summary.endswith(
        "They are of the lines whose backwards were stepped on before. A guard in the loop may "
        "leave out the step."
    )
    assert "left_out" in guarded.fix
    assert (nan := left_open(5, zeroed=19, nonfinite=60, again=True)) and nan.severity == "error"
    later = left_open(5, zeroed=69, nonfinite=60, norms=70, nonfinite_norms=65, scaled=70)
    assert later is not None and (later.first_step, later.last_step) == (4, 4)  # the last step
    assert later.summary == (
        "70 backwards added to the gradients of SGD after step 4, and no step followed until the "
        "process ended. The gradients were zeroed 69 times in between. The loss was not finite at "
        "60 of them. 65 of 70 measured norms were not finite. The losses were scaled, and "
        "scaler.step was not called. If a guard waits for finite gradients, it must call "
        "scaler.update() where it leaves out a step: nothing else lowers the scale."
    )


def test_a_limit_of_the_norm_that_no_window_meets_is_named() -> None:
    limited = left_open(1, zeroed=69, norms=70)
    assert limited is not None and limited.severity == "error"
    assert "measured 70 norms in between, and all were finite" in limited.summary
    assert "a guard with a limit of the norm" in limited.summary
    for zeroed, norms in ((0, 70), (11, 120)):  # clips of micro-batches
        clipped = left_open(1, zeroed=zeroed, norms=norms)
        assert clipped is not None and "all were finite" not in clipped.summary


def test_a_schedule_that_is_planned_in_other_steps_is_named_when_the_training_ends() -> None:
    def unfinished(planned: int) -> Finding | None:
        left = LeftOpen(60, planned=planned, scheduled=18, trained=66)
        sent = record([], 19, skipped=True, post_factor=None, left_open=left)
        window = facts(sent)
        assert finding_of("loop.never_stepped", window) is None
        return finding_of("schedule.planned_in_other_steps", window)

    finding = unfinished(66)
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "The LR schedule made 18 of the 66 steps of its plan"
    assert "18 optimizer steps and 66 micro-batches" in finding.summary
    assert "66 steps, as many as micro-batches ran" in finding.summary
    assert "optimizer steps, not micro-batches" in finding.fix
    nearly = unfinished(67)
    assert nearly is not None and "67 steps, about as many as micro-batches ran" in nearly.summary
    by_epoch = unfinished(18)
    assert by_epoch is not None and "as many as optimizer steps were taken" in by_epoch.summary
    assert "step it after each" in by_epoch.fix
    assert unfinished(0) is None


def test_a_schedule_without_a_plan_is_not_applicable() -> None:
    rules = ("schedule.planned_in_other_steps", "schedule.only_warmup")

    def answers(scheduled: int | None, **missing: str) -> set[str]:
        sent = record([term(8, 1 / 8)], 1, lr=0.1, missing=missing)
        sent.scheduled = scheduled
        coverage = judged([facts(sent)]).coverage
        return {coverage[rule] for rule in rules}

    assert answers(1) == {"ok"}
    assert answers(None) == {"not_applicable: no plan of an LR scheduler was read"}
    assert answers(1, schedule_total="no number") == {"not_applicable: no number"}
    unknown = record([], 2, skipped=True, post_factor=None, left_open=LeftOpen(60))
    planned = record([], 2, skipped=True, post_factor=None, left_open=LeftOpen(60, planned=70))
    for left, status in ((unknown, "not_applicable: no plan"), (planned, "ok")):
        assert judged([facts(left)]).coverage["schedule.only_warmup"].startswith(status)


def test_a_schedule_that_is_planned_for_the_steps_of_all_ranks_is_named() -> None:
    def unfinished(planned: int, ranks: int = 3) -> Finding | None:
        left = LeftOpen(60, planned=planned, scheduled=18, trained=36)
        sent = [record([], 19, skipped=True, post_factor=None, left_open=left)] * ranks
        return finding_of("schedule.planned_in_other_steps", facts(*sent))

    finding = unfinished(108)
    assert finding is not None and finding.severity == "info"  # a training may end early
    assert "as many as micro-batches ran on all 3 ranks together" in finding.summary
    assert "If the plan counts the steps of all ranks together, the rate" in finding.summary
    of_steps = unfinished(54)
    assert of_steps is not None and "as many as optimizer steps were taken on" in of_steps.summary
    assert unfinished(55) is None
    of_two = unfinished(72, 2)
    assert of_two is not None and "ran on both ranks together" in of_two.summary
    of_one = unfinished(36, 2)  # micro-batches of one rank, and steps of both
    assert of_one is not None and of_one.severity == "warning"
    assert unfinished(144) is None  # of four, not all of which may be data-parallel


def rescheduled(total: int, *rates: float, most: int = 1000) -> Finding | None:
    windows = []
    for number, rate in enumerate(rates, 1):
        sent = record([term(8, 1 / 8)], number, lr=rate)
        sent.scheduled, sent.schedule_total = min(number - 1, most), total
        windows.append(facts(sent))
    return finding_of("schedule.planned_in_other_steps", *windows)


def test_a_rate_that_rises_again_after_the_end_of_its_schedule_is_information() -> None:
    cosine = [0.05 * (1 + math.cos(math.pi * step / 20)) for step in range(60)]
    finding = rescheduled(20, *cosine)
    assert finding is not None and finding.severity == "info" and finding.first_step == 26
    assert "planned for 20 steps, and has made 59. At step 20 of the schedule" in finding.summary
    assert rescheduled(20, *cosine[:24]) is None  # a few steps past the end
    assert rescheduled(20, *cosine[:21], *[0.0] * 30) is None  # it stays at the end
    higher = rescheduled(20, *cosine[:40], 0.1001)  # by a rounding error, or more
    assert higher is not None and "the rate was 0, and it is 0.1001 now" in higher.summary
    assert higher.evidence["lr_highest"] == higher.evidence["lr"] == 0.1001
    warmup = [0.0, 0.05, *cosine]
    assert rescheduled(22, *warmup) is not None
    set_by_hand = [*cosine[:21], *[0.05] * 30]  # a new stage, without the schedule
    assert rescheduled(20, *set_by_hand, most=20) is None
    assert rescheduled(40, *cosine) is None  # cycles of a schedule that is planned for more


def test_a_record_of_the_end_is_no_step() -> None:
    """Other rules keep what they state of the steps before it."""
    steps = [facts(record([term(8, 1 / 8)], number)) for number in (1, 2)]
    left = LeftOpen(planned=8, scheduled=2, trained=8)
    ended = facts(record([], 3, skipped=True, post_factor=None, left_open=left))
    before, after = judged(steps), judged([*steps, ended])
    own = {"schedule.planned_in_other_steps", "schedule.only_warmup"}
    assert {r: c for r, c in after.coverage.items() if r not in own} == {
        r: c for r, c in before.coverage.items() if r not in own
    }


def test_an_optimizer_that_steps_while_accelerate_accumulates_was_not_prepared() -> None:
    """Of a squared error, a half may be its formula; the step in the middle shows what it is."""

    def named(accumulating: tuple[bool, ...]) -> str:
        error = dataclasses.replace(term(10, 0.025), kind="MseLossBackward0")
        sent = [record([error], number + 1) for number in range(len(accumulating))]
        for each, early in zip(sent, accumulating, strict=True):
            each.accumulating = early
        evaluation = judged([facts(each) for each in sent])
        found = [f for f in evaluation.findings if f.rule == "loop.step_every_microbatch"]
        return found[0].summary if found else ""

    assert "the optimizer was not prepared" in named((True, True, True, False))
    assert named((False, False, False, False)) == ""


def test_micro_batches_after_which_the_parameters_changed_were_not_discarded() -> None:
    """An optimizer that accumulates by itself updates them in another method than its step."""
    for changed, reported in ((False, True), (True, False)):
        sent = record([term(10, 1 / 40)] * 4, 2)
        sent.micro_batches[2].fresh, sent.micro_batches[2].parameters_changed = True, changed
        finding = finding_of("loop.discarded_microbatches", begun(1), facts(sent))
        assert (finding is not None) == reported


def test_a_second_pass_over_a_part_of_the_window_is_reported_if_all_of_it_divides() -> None:
    """SAM that accumulates: the first pass has four micro-batches, the step the last one again."""

    def title(weight: float, again: float, divisor: float = 4.0) -> str | None:
        sent = record([term(10, weight / 10, divisors=[divisor])] * 5, 2)
        for micro_batch, data in zip(sent.micro_batches, (1.5, 2.5, 3.5, 4.5, again), strict=True):
            micro_batch.fingerprint = data
        sent.micro_batches[4].fresh = sent.micro_batches[4].parameters_changed = True
        finding = finding_of("loop.discarded_microbatches", begun(1), facts(sent))
        return finding.title if finding else None

    assert title(1 / 4, 4.5) == "The step applies 1 of 4 micro-batches, and divides by 4"
    assert title(1 / 4, 4.5, divisor=2.0) is None  # a weight
    assert title(1.0, 4.5) is None  # its mean
    assert title(1 / 5, 5.5) is None  # no second pass: other data


def test_loops_that_assign_the_gradients_are_no_loops_without_any() -> None:
    """Such as flat shards: the optimizer holds a copy, and the loop assigns its gradient."""
    assigned = judged([facts(record([], norm=0.5))]).coverage
    absent = judged([facts(record([], norm=None, empty=True))]).coverage
    for rule in ("zeroed_every_microbatch", "discarded_microbatches", "dropped_windows"):
        assert assigned[f"loop.{rule}"] == f"not_measured: {LEFT_OR_ASSIGNED}"
        assert absent[f"loop.{rule}"] == f"not_measured: {NO_BACKWARD}"


def test_an_optimizer_that_never_stepped_beside_another_one_is_named() -> None:
    waits: dict[str, Any] = {"idle": "Adagrad", "names": ["user.weight", "item.weight"]}
    finding = left_open(1002, 1001, zeroed=1000, **waits)
    assert finding is not None and finding.severity == "warning"
    title = "An optimizer (Adagrad) never stepped, although its parameters got gradients"
    assert finding.title == title
    assert "gradients of user.weight, item.weight. The optimizer that holds" in finding.summary
    assert "made 1,001 steps. The gradients were zeroed 1,000 times" in finding.summary
    assert (stopped := left_open(1002, 1001, zeroed=1000, stopped=True, **waits)) is not None
    assert stopped.severity == "info"
    assert (few := left_open(41, 40, zeroed=39, **waits)) is not None
    assert few.severity == "info"  # it may begin later
    scaled = left_open(1002, 1001, zeroed=1000, scaled=1001, **waits)
    assert scaled is not None and "scaler.step was not called" not in scaled.summary
    assert (piled_up := left_open(66, 65, **waits)) is not None and piled_up.severity == "info"
    assert left_open(65, 64, **waits) is None
