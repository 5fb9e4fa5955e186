"""Courses of gradient norm and loss: what is a spike or a fading, and what comes close to one."""

from __future__ import annotations

import dataclasses
import math
import random
from statistics import median

import pytest

from gradledger.records import Event, Op
from gradledger_monitor.api.pages.run import marked_steps
from gradledger_monitor.model.findings import EvaluationResult, Finding
from gradledger_monitor.rules.norm.trend import FarthestValues
from helpers.facts import facts, judged, record, term
from museum.courses.short_histories import drawn, reported_by

RunHistory = list[tuple[float, float]]  # norm and loss, step by step

CALM: RunHistory = [(1.0 + 0.05 * (-1) ** n, 2.0 + 0.05 * (-1) ** n) for n in range(60)]

RISING: RunHistory = [(1.0, 16.0), (1.0, 64.0), (1.0, 256.0)]


def finding_of(rule: str, course: RunHistory) -> Finding | None:
    """The finding of a rule in a series of norms and losses."""
    return next((f for f in evaluation_of(course).findings if f.rule == rule), None)


def coverage_of(rule: str, course: RunHistory) -> str:
    """What a rule states that has no finding."""
    return evaluation_of(course).coverage[rule]


def evaluation_of(course: RunHistory) -> EvaluationResult:
    """The evaluation of a series of norms and losses."""
    steps = []
    for number, (norm, loss) in enumerate(course, 1):
        step_record = record([term(8, 1 / 8)], number, norm=norm)
        step_record.micro_batches[0].loss = loss
        steps.append(facts(dataclasses.replace(step_record, time=float(number))))
    return judged(steps)


def spike(*after: tuple[float, float], calm: RunHistory = CALM) -> Finding | None:
    """The warning after sixty steady steps and these; a jump that ended is information."""
    finding = finding_of("norm.spike", [*calm, *after])
    return None if finding is None or finding.severity == "info" else finding


def recovered(*after: tuple[float, float]) -> Finding | None:
    """What is stated as information after the same steps."""
    finding = finding_of("norm.spike", [*CALM, *after])
    return finding if finding is not None and finding.severity == "info" else None


def test_a_jump_that_takes_the_loss_along_is_reported_once_the_loss_has_stayed_up() -> None:
    jump, stays = (8.0, 4.0), (1.0, 4.0)
    assert spike(jump, jump, stays) is None
    finding = spike(jump, jump, stays, stays)
    assert finding is not None
    assert (finding.first_step, finding.severity) == (64, "warning")
    assert finding.summary == (
        "The gradient norm reached 8, 8.0 times its moving average, and the loss jumped with it."
    )
    assert finding.evidence["norm"] == 8.0
    assert finding.evidence["ratio"] == pytest.approx(8.0, rel=0.01)
    assert (finding.evidence["steps_high"], finding.evidence["loss"]) == (0, 4.0)


def test_the_largest_jump_of_those_that_the_loss_follows_is_the_one_that_is_reported() -> None:
    finding = spike((8.0, 4.0), (16.0, 4.0), (4.0, 4.0), (1.0, 4.0))
    assert finding is not None and finding.evidence["norm"] == 16.0
    later = spike((16.0, 4.0), (1.0, 2.0), (8.0, 4.0), *RISING)
    assert later is not None and later.evidence["norm"] == 8.0


def test_a_loss_that_comes_back_in_between_begins_anew() -> None:
    jump, stays, back = (8.0, 4.0), (1.0, 4.0), (1.0, 2.0)
    assert spike(jump, stays, stays, back, stays) is None
    assert spike(jump, stays, back, jump, stays, stays) is None
    assert spike(jump, *RISING) is not None


BACK = (1.0, 2.0)  # the step after a jump: norm and loss in their ranges


def test_a_far_jump_is_reported_after_a_step_if_the_loss_was_up_with_it() -> None:
    finding = spike((50.0, 4.0), BACK)
    assert finding is not None and (finding.first_step, finding.last_step) == (61, 61)
    assert finding.evidence["norm"] == 50.0
    assert spike((50.0, 4.0)) is None  # not known yet whether it was this batch alone
    assert spike((50.0, 2.0), BACK) is None
    assert spike((20.0, 4.0), BACK) is None


def test_in_a_long_run_a_jump_must_be_beyond_the_reach_of_its_own_jumps() -> None:
    """One batch far above the others is no error where batches differ as much as that."""
    heavy = drawn(75, 1060)  # Student's t in the logarithm: at step 1056, 1138 times the average
    assert max(norm for norm, _ in heavy) > 1000 * median(norm for norm, _ in heavy)
    assert reported_by(heavy) == set()
    pick = random.Random(0)
    light = [(math.exp(x), math.exp(x)) for x in (pick.gauss(0, 0.3) for _ in range(1060))]
    assert reported_by(light) == set()
    light[1055] = (50.0, 50.0)
    assert reported_by(light) == {"norm.spike"}


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(352, 970), (540, 440), (381, 3215)],  # 2035x and 402x in one batch; 4.1x, and the loss stays
)
def test_jumps_of_a_healthy_run_that_its_own_norms_reach_are_not_reported(
    seed: int, steps: int
) -> None:
    assert reported_by(drawn(seed, steps)) == set()


@pytest.mark.parametrize(
    "jump",
    [[(249.0, 30.0), (1.0, 1.0)], [(40.0, 8.0)] + [(8.0, 8.0)] * 3],
    ids=["one corrupt batch", "the loss stays up"],
)
def test_jumps_beyond_the_norms_of_a_run_are_reported_from_200_steps_on(
    jump: list[tuple[float, float]],
) -> None:
    pick = random.Random(3)
    calm = [(math.exp(x), math.exp(x / 2)) for x in (pick.gauss(0, 0.2) for _ in range(250))]
    assert reported_by(calm) == set()
    assert reported_by([*calm, *jump]) == {"norm.spike"}


def test_norms_that_fall_have_no_tail_and_the_batch_far_above_them_is_reported() -> None:
    """Few of them are above their average, which is behind: the least of these is close to it."""
    pick = random.Random(2)
    noise = [(0.002 * step, pick.gauss(0, 0.03)) for step in range(2400)]
    falls = [(5 * math.exp(x - fall), 2 * math.exp(x / 2 - fall)) for fall, x in noise]
    assert reported_by(falls) == set()
    norm, loss = falls[-2]
    falls[-2] = (100 * norm, 50 * loss)
    assert reported_by(falls) == {"norm.spike"}


def test_the_reach_of_a_series_follows_from_its_largest_values() -> None:
    """Of a power law with the exponent 2, a further value is k times the largest in 1 / k ** 2."""
    values = FarthestValues(200)
    for number in range(1, 10_001):
        values.add((10_001 / number) ** 0.5)
    assert values.reach(0.01) == pytest.approx(100 * (100 * math.log(10_000)) ** 0.5, rel=0.15)
    few = FarthestValues(3)
    few.add(2.0)
    few.add(-1.0)
    few.add(1.0)
    assert few.reach(0.01) == 0.0


def test_a_loss_that_jumps_and_falls_step_by_step_is_new_data() -> None:
    falling = [(50.0 * 0.9**n, 9.0 * 0.9**n) for n in range(12)]
    assert spike(*falling) is None
    assert spike(*[(50.0 * 0.9**n, 9.0) for n in range(12)]) is not None


def test_jumps_that_are_not_reported_are_counted() -> None:
    answer = coverage_of("norm.spike", [*CALM, (20.0, 2.0), *CALM, (8.0, 2.0), *CALM])
    assert answer == "ok: 2 spikes, the largest 20x at step 61, recovered"
    assert coverage_of("norm.spike", CALM) == "ok: no spike in 60 recorded steps"


def test_a_far_jump_that_ended_is_information_with_its_step_and_the_count() -> None:
    finding = recovered((50.0, 2.0), BACK)
    assert finding is not None
    assert (finding.first_step, finding.steps, finding.severity) == (61, 1, "info")
    assert finding.title == "The gradient norm spiked and recovered"
    assert finding.summary == (
        "The gradient norm reached 50 at step 61, 50.1 times its moving average, and came back by "
        "itself."
    )
    assert (finding.evidence["norm"], finding.evidence["spikes"]) == (50.0, 1)
    assert finding.evidence["spikes_at"] == [61]
    again = recovered((50.0, 2.0), *CALM, (40.0, 2.0), BACK)
    assert again is not None and "There were 2 spikes, the largest 50.1x" in again.summary
    assert again.evidence["spikes_at"] == [61, 122]
    assert marked_steps(again) == [61, 122]


def test_a_near_jump_or_one_that_lasts_is_no_information() -> None:
    assert recovered((20.0, 2.0), BACK) is None
    assert recovered((50.0, 2.0)) is None
    assert recovered(*[(50.0, 2.0)] * 5) is None
    assert recovered((8.0, 4.0), *RISING, *CALM, (50.0, 2.0), BACK) is None  # reported before


def tree_of(course: RunHistory) -> tuple[str, str]:
    """The answer to the question about norms, with its reason."""
    node = next(n for n in evaluation_of(course).tree if n.node == "norm")
    return node.status, node.reason


def test_a_jump_that_ended_does_not_answer_the_question_about_norms() -> None:
    ended = [*CALM, (50.0, 2.0), BACK]
    for course in (ended, [*ended, *CALM]):
        assert tree_of(course) == tree_of(CALM)
        assert coverage_of("norm.spike", course).endswith("1 spike, 50.1x at step 61, recovered")
    assert tree_of([*CALM, *[(50.0, 2.0)] * 20])[0] == "finding"


def test_short_histories_state_what_is_evaluated_with_them() -> None:
    short = CALM[:8]
    assert coverage_of("norm.spike", short) == "not_measured: needs 8 steps of history"
    assert coverage_of("norm.spike", CALM[:30]) == (
        "ok: no jump far above all norms before, in 30 recorded steps; a smaller one needs 50 "
        "steps of history"
    )
    for steps in (8, 20, 49):
        found = finding_of("norm.spike", [*CALM[:steps], (40.0, 9.0)])
        assert found is not None
        assert (found.severity, found.first_step) == ("warning", steps + 1)
    assert finding_of("norm.spike", [*CALM[:7], (400.0, 9.0)]) is None
    assert finding_of("norm.spike", [*CALM[:20], (40.0, 2.0)]) is None


def test_coverage_counts_the_jumps_of_a_finding() -> None:
    answer = coverage_of("norm.spike", [*CALM, (50.0, 2.0), *CALM])
    assert answer == "finding: 1 spike, 50.1x at step 61, recovered"


def test_a_loss_that_is_no_number_any_more_is_up() -> None:
    assert spike((50.0, math.nan)) is not None


@pytest.mark.parametrize("loss", [2.35, 0.0, -4.0])
def test_a_loss_that_hardly_rises_or_has_no_logarithm_is_not_up(loss: float) -> None:
    assert spike((50.0, loss), BACK) is None
    assert spike((50.0, 2.5), BACK) is not None


def test_losses_are_compared_with_their_own_range_however_small_or_wide_it_is() -> None:
    small = [(norm, loss / 10) for norm, loss in CALM]
    assert spike((50.0, 0.4), (1.0, 0.2), calm=small) is not None
    wide = [(norm, 2.0 + (-1) ** n) for n, (norm, _) in enumerate(CALM)]
    assert spike((50.0, 4.0), BACK, calm=wide) is None
    still = [(norm, 2.0 + 0.001 * (-1) ** n) for n, (norm, _) in enumerate(CALM)]
    assert spike((50.0, 2.42), BACK, calm=still) is None
    assert spike((50.0, 2.5), BACK, calm=still) is not None


def test_the_range_of_the_loss_is_that_of_late() -> None:
    assert spike(*[(1.0, 3.0)] * 100, (50.0, 3.1), BACK) is None


def test_a_norm_must_be_far_out_by_its_own_deviation_and_thrice_its_average() -> None:
    assert spike(*[(2.5, 4.0)] * 6) is None
    wide = [(norm * math.exp((-1) ** n), loss) for n, (norm, loss) in enumerate(CALM)]
    assert spike(*[(4.0, 4.0)] * 6, calm=wide) is None


def test_a_loss_that_rises_alone_is_no_spike_of_the_norm() -> None:
    assert spike(*[(1.0, 4.0)] * 9) is None
    assert spike(*[(1.0, 4.0**n) for n in range(1, 9)]) is None
    assert spike(*[(1.0, 4.0**n) for n in range(1, 5)], calm=CALM[:50]) is None


def test_a_norm_that_stays_high_is_reported_after_ten_steps_whatever_the_loss_does() -> None:
    high = (8.0, 2.0)
    assert spike(*[high] * 10) is None
    assert spike(*[high] * 10, calm=CALM[:50]) is None
    finding = spike(*[high] * 11)
    assert finding is not None
    assert finding.summary == (
        "The gradient norm is 8, 8.0 times its moving average, and has been out of its range for "
        "11 steps."
    )


def test_of_a_short_history_nothing_is_stated() -> None:
    calm = CALM[:49]
    assert spike((50.0, 4.0), BACK, calm=calm) is None
    assert spike((50.0, 4.0), BACK, calm=CALM[:50]) is not None


def test_without_losses_to_compare_with_a_jump_waits_until_it_has_stayed() -> None:
    unknown = [(norm, 0.0) for norm, _ in CALM]
    assert spike((50.0, 4.0), BACK, calm=unknown) is None
    assert spike((50.0, 4.0), BACK, calm=[*unknown[:40], *CALM[40:]]) is None


def fading(early: float, late: float, loss: float = 2.0, clear: int = 0) -> Finding | None:
    """Eighty steps of a norm, then a hundred of another, some of them again as at first."""
    faded = [(late, loss)] * 100
    faded[50 : 50 + clear] = [(early, loss)] * clear
    return finding_of("norm.vanishing", [*[(early, 2.0)] * 80, *faded])


def test_a_norm_of_which_a_thousandth_is_left_has_vanished_while_the_loss_stays() -> None:
    finding = fading(1.0, 0.0009)
    assert finding is not None
    # twenty steps are the median; it is the late one from the eleventh on
    assert finding.first_step == 91
    assert finding.summary == (
        "The median gradient norm fell from 1 to 0.0009, while the median loss went from 2 to 2."
    )
    assert fading(1.0, 0.001) is None
    assert fading(1.0, 0.0011) is None
    assert fading(2.0, 0.0015) is not None
    assert fading(0.5, 0.0006) is None
    small = [(norm, 0.5) for norm in [1.0] * 80 + [0.0009] * 100]
    assert finding_of("norm.vanishing", small) is not None


def test_a_norm_that_was_faded_from_its_own_beginning_has_not_vanished() -> None:
    assert fading(0.0009, 0.0009) is None


def test_a_loss_that_was_learnt_explains_small_gradients() -> None:
    assert fading(1.0, 0.0001, loss=0.1) is None


def test_norms_that_come_back_for_twenty_steps_are_clear_for_as_long() -> None:
    for_good, for_a_while = fading(1.0, 0.0009), fading(1.0, 0.0009, clear=20)
    assert for_good is not None and for_a_while is not None
    # from the tenth that came back to the tenth that is left, they are half of twenty and more
    assert for_good.steps - for_a_while.steps == 21


def clipped(own: bool, op: Op = "clip_norm") -> Finding | None:
    """A norm of one that a limit of a ten-thousandth makes small, from step 81 on."""
    steps = []
    for number in range(1, 181):
        late = number > 80
        step_record = record([term(8, 1 / 8)], number, norm=1e-4 if late else 1.0)
        step_record.micro_batches[0].loss = 2.0
        step_record.events = [Event(op, 1, own=own, limit=1e-4, norm=1.0)] if late else []
        steps.append(facts(dataclasses.replace(step_record, time=float(number))))
    return next((f for f in judged(steps).findings if f.rule == "norm.vanishing"), None)


def test_a_norm_that_clipping_made_small_has_not_vanished() -> None:
    assert clipped(own=True) is None
    assert clipped(own=False) is not None  # another optimizer's gradients were clipped
    assert clipped(own=True, op="clip_value") is not None


def test_a_loss_that_fell_half_of_the_way_it_ever_fell_is_learnt() -> None:
    """Early it was 2, the best span was 1: half of the way is 1.5."""

    def course(late: float) -> RunHistory:
        return [*[(1.0, 2.0)] * 60, *[(1.0, 1.0)] * 20, *[(0.0001, late)] * 100]

    assert finding_of("norm.vanishing", course(1.4)) is None
    assert finding_of("norm.vanishing", course(1.6)) is not None


def test_of_fewer_than_sixty_steps_no_fading_is_reported() -> None:
    def course(late: int) -> RunHistory:
        return [*[(1.0, 2.0)] * 20, *[(0.0001, 2.0)] * late]

    assert finding_of("norm.vanishing", course(39)) is None
    assert finding_of("norm.vanishing", course(40)) is not None


@pytest.mark.parametrize("added", [False, True])
def test_the_norm_of_another_parameter_group_is_neither_a_spike_nor_an_explosion(
    added: bool,
) -> None:
    """The backbone is unfrozen after 110 steps: from there on, the norm is that of both groups."""
    steps = []
    for number in range(1, 161):
        both = number > 110
        rates = [0.1, 0.01] if both and added else []
        window = record([term(8, 1 / 8)], number, norm=15.0 if both else 1.0, lrs=rates)
        steps.append(facts(window))
    reported = {f.rule for f in judged(steps).findings}
    assert reported == (set() if added else {"norm.spike", "norm.exploding"})


@pytest.mark.parametrize(
    ("raised", "explodes", "expected"),
    [
        (True, False, set[str]()),  # the norm follows the constant that multiplies the loss
        (True, True, {"norm.spike", "norm.exploding"}),  # beyond it, after the ramp
        (False, False, {"norm.spike", "norm.exploding"}),
    ],
)
def test_a_norm_that_rises_with_the_weight_of_its_loss_does_not_explode(
    raised: bool, explodes: bool, expected: set[str]
) -> None:
    """A weight of 1 rises to 41 from step 101 to 140."""
    steps = []
    for number in range(1, 401):
        ramp = 1.0 + min(max(number - 100, 0), 40)
        beyond = 20.0 if explodes and number > 300 else 1.0
        terms = [term(8, (ramp if raised else 1.0) / 8, coefficient=ramp if raised else 1.0)]
        window = record(terms, number, norm=ramp * beyond)
        window.micro_batches[0].loss = ramp * beyond
        steps.append(facts(window))
    assert {f.rule for f in judged(steps).findings if f.rule.startswith("norm")} == expected


@pytest.mark.parametrize(
    ("growth", "factor", "every", "explodes"),
    [
        (1.12, 1.6, 12, True),  # the weight of another loss rises by less than the norm does
        (2 ** (1 / 5), 2.0, 5, True),  # an adaptive weight that runs away: no ramp is as long
        (1.08, 1.12**12, 12, False),  # by less than the weight
    ],
)
def test_a_weight_explains_a_norm_by_its_own_factor(
    growth: float, factor: float, every: int, explodes: bool
) -> None:
    """Both rise from step 101 on."""
    steps = []
    for number in range(1, 241):
        since = min(max(number - 100, 0), 140 if explodes else 60)
        weight = factor ** (since // every)
        window = record([term(8, weight / 8, coefficient=weight)], number, norm=growth**since)
        window.micro_batches[0].loss = 1.0
        steps.append(facts(window))
    reported = {f.rule for f in judged(steps).findings}
    assert ("norm.exploding" in reported) is explodes
