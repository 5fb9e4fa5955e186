"""Series of losses: which of them diverge, and which only look like it."""

from __future__ import annotations

import math

import pytest

from gradledger import records
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.model.findings import EvaluationResult, Finding
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.overrides import RuleOverrides
from helpers.facts import accused, facts, judged, record, term

SQUARED_ERROR = "MseLossBackward0"


def step(number: int, losses: list[float], kind: str, **more: object) -> StepFacts:
    """A step with one micro-batch for each loss."""
    terms = [term(8, 1 / 8 / len(losses), kind=kind) for _ in losses]
    run = {"optimizers": more.pop("optimizers")} if "optimizers" in more else {}
    sent = record(terms, number, **more)
    for micro_batch, loss in zip(sent.micro_batches, losses, strict=True):
        micro_batch.loss = loss
    return facts(sent, **run)


def evaluation(losses: list[float], kind: str = SQUARED_ERROR, **more: object) -> EvaluationResult:
    """The evaluation of steps with one micro-batch each."""
    return judged([step(n, [loss], kind, **more) for n, loss in enumerate(losses, 1)])


def of_classes(losses: list[float], classes: list[int]) -> EvaluationResult:
    """The evaluation of a cross entropy that has so many classes at each step."""
    steps = []
    for n, (loss, count) in enumerate(zip(losses, classes, strict=True), 1):
        sent = record([term(8, 1 / 8, classes=count)], n)
        sent.micro_batches[0].loss = loss
        steps.append(facts(sent))
    return judged(steps)


def finding(rule: str, result: EvaluationResult) -> Finding | None:
    """The finding of a rule."""
    return next((f for f in result.findings if f.rule == rule), None)


RISING = [1.0, 0.9, 1.1, 1.0, 0.8, *[10.0 ** (n + 1) for n in range(9)]]
STEADY = [1.0 + 0.1 * (-1) ** n for n in range(30)]


def test_a_loss_far_above_its_start_that_stays_there_is_an_error() -> None:
    result = evaluation(RISING)
    found = finding("loss.diverging", result)
    assert result.verdict == "broken"
    assert found is not None and (found.severity, found.first_step) == ("error", 13)
    assert found.evidence["loss_start"] == 1.1
    assert found.evidence["since"] == 6
    assert "It left the range of the start at step 6." in found.summary


def test_a_loss_that_comes_back_or_falls_or_starts_large_does_not_diverge() -> None:
    assert finding("loss.diverging", evaluation([*STEADY, 1e6, 1e6, 1e6, *STEADY])) is None
    falling = [1e6 * 0.8**n for n in range(20)]
    assert finding("loss.diverging", evaluation([*STEADY, *falling])) is None
    assert finding("loss.diverging", evaluation([1e5] * 5 + [1e6] * 20)) is None


def test_one_step_is_enough_if_the_threshold_is_one() -> None:
    steps = [step(n, [loss], SQUARED_ERROR) for n, loss in enumerate([*STEADY, 1e6], 1)]
    state = RunState(steps[0].run, RuleOverrides(thresholds={"loss.diverging": {"stays": 1}}))
    for each in steps:
        state.add_facts(each)
    found = finding("loss.diverging", state.result())
    assert found is not None and found.first_step == len(steps)


def test_a_loss_that_starts_near_zero_has_not_diverged_below_a_thousand() -> None:
    assert finding("loss.diverging", evaluation([1e-9] * 10 + [900.0] * 20)) is None
    assert finding("loss.diverging", evaluation([1e-9] * 10 + [1100.0] * 20)) is not None


def test_of_a_loss_that_has_been_negative_and_of_opposed_optimizers_nothing_is_stated() -> None:
    negative = evaluation([-1e-3, *RISING])
    assert finding("loss.diverging", negative) is None
    assert negative.coverage["loss.diverging"].startswith("not_applicable")
    gan = evaluation(RISING, optimizers=["Adam", "Adam"])
    assert finding("loss.diverging", gan) is None
    assert finding("norm.exploding", gan) is None


def test_an_optimizer_that_takes_over_the_parameters_of_another_one_is_not_opposed() -> None:
    successor = evaluation(RISING, optimizers=["Adam", "Adam"], alone=True)
    assert finding("loss.diverging", successor) is not None


def test_a_cross_entropy_is_compared_with_a_model_that_guesses() -> None:
    start = [2.3] * 10
    entropy = evaluation([*start, *[8.0] * 30], "NllLossBackward0")
    assert finding("loss.diverging", entropy) is not None
    assert finding("loss.diverging", evaluation([*start, *[8.0] * 30])) is None
    assert finding("loss.diverging", evaluation([*start, *[6.0] * 30], "NllLossBackward0")) is None


def test_a_cross_entropy_that_rises_back_to_its_start_and_stays_is_unlearnt() -> None:
    learnt = [2.3 * 0.97**n + 0.3 for n in range(100)]
    back = evaluation([*learnt, *[2.2 + 0.1 * (-1) ** n for n in range(160)]], "NllLossBackward0")
    found = finding("loss.diverging", back)
    assert found is not None and found.severity == "info"
    assert found.title == "The cross entropy has risen back"
    assert "The model has unlearnt, or what it is trained on is harder" in found.summary
    burst = [*learnt, *[9.0] * 5, *[2.2 + 0.1 * (-1) ** n for n in range(160)]]
    lost = finding("loss.diverging", evaluation(burst, "NllLossBackward0"))
    assert lost is not None and lost.severity == "error"
    assert lost.title == "The model has unlearnt"
    assert "It left the range of the start at step 101." in lost.summary
    new = [*learnt, *[9.0] * 5, *[1.7 + 0.1 * (-1) ** n for n in range(160)]]  # new classes
    harder_at_once = finding("loss.diverging", evaluation(new, "NllLossBackward0"))
    assert harder_at_once is not None and harder_at_once.severity == "info"
    apart = [*learnt, 99.0, *learnt[-60:], *[2.2 + 0.1 * (-1) ** n for n in range(160)]]
    later = finding("loss.diverging", evaluation(apart, "NllLossBackward0"))
    assert later is not None and later.severity == "info"
    harder = [2.2 * 0.99**n for n in range(160)]  # new data, which is learnt, too
    assert finding("loss.diverging", evaluation([*learnt, *harder], "NllLossBackward0")) is None


TWO_LEARNT = [0.69 * 0.98**n for n in range(100)]
GUESSING = [4.0 - 0.001 * n for n in range(60)]  # among 50 classes


def growing(before: list[float], after: list[float]) -> Finding | None:
    """The finding where two classes become fifty."""
    classes = [2] * len(before) + [50] * len(after)
    return finding("loss.diverging", of_classes([*before, *after], classes))


def test_with_more_classes_the_start_begins_again() -> None:
    assert growing(TWO_LEARNT, GUESSING) is None
    diverged = growing(TWO_LEARNT, [*GUESSING, *[13.0] * 40])
    assert diverged is not None
    assert "At the start it was at most 4" in diverged.summary
    reason = "Losses before step 101 are not compared: it is the first measured step with 50"
    assert reason in diverged.summary
    assert growing([*TWO_LEARNT, 4.0], GUESSING) is None  # a single high loss is no divergence


def test_classes_that_are_added_during_a_divergence_do_not_begin_the_start_later() -> None:
    error = growing([*TWO_LEARNT, *[9.0] * 30], GUESSING)
    assert error is not None and error.lifecycle == "ongoing"
    begins = [*TWO_LEARNT, *[9.0] * 10]  # too short to be reported
    again = growing(begins, [*[9.0] * 5, *TWO_LEARNT[-60:], *[15.0] * 40])
    assert again is not None and again.lifecycle == "ongoing"
    assert "are not compared" not in again.summary
    assert "At the start it was at most 0.69, and the lowest median was" in again.summary


def test_a_number_of_classes_that_rises_every_few_steps_hides_no_slow_divergence() -> None:
    learnt = [2 * 0.98**n + 0.1 for n in range(150)]
    rising = [min(0.1 * 1.03**n, 7.0) for n in range(250)]
    error = finding(
        "loss.diverging", of_classes([*learnt, *rising], [8 + n // 7 for n in range(400)])
    )
    assert error is not None and error.severity == "error"
    assert "The mean cross entropy is 7" in error.summary


def test_a_cross_entropy_that_no_guess_has_is_not_the_start() -> None:
    from_the_first = [1.6, 12.0, 48.0, 34.0, 17.0, *[48.0] * 30]
    error = finding("loss.diverging", of_classes(from_the_first, [5] * 35))
    assert error is not None and "At the start it was at most 1.6." in error.summary
    assert finding("loss.diverging", of_classes(from_the_first, [10**6] * 35)) is None


def test_a_loss_that_rose_from_the_first_step_on_must_come_back_to_it() -> None:
    rising = [1.0, 30.0, 200.0, 1e3, 3e3, *[1e7] * 10]
    for later, lifecycle in ((2e3, "ongoing"), (2.0, "resolved")):
        error = finding("loss.diverging", evaluation([*rising, *[later] * 30]))
        assert error is not None and error.lifecycle == lifecycle


def test_a_batch_whose_examples_are_the_classes_is_compared_with_one_of_its_size() -> None:
    losses = [*(2.3 * 0.97**n + 0.3 for n in range(100)), *[2.2] * 160]

    def of_sizes(*sizes: int) -> EvaluationResult:
        steps = []
        for n, loss in enumerate(losses, 1):
            size = sizes[(n - 1) * len(sizes) // len(losses)]
            sent = record([term(size, 1 / size, kind="NllLossBackward0")], n)
            (batch,) = sent.micro_batches
            batch.loss, batch.consecutive_target = loss, True
            steps.append(facts(sent))
        return judged(steps)

    assert finding("loss.diverging", of_sizes(8, 16)) is None
    assert finding("loss.diverging", of_sizes(8, 8)) is not None


def test_the_learning_rate_that_changed_when_the_rise_began_is_named() -> None:
    steps = [
        step(n, [loss], SQUARED_ERROR, lr=0.1 if n < 5 else 10.0)
        for n, loss in enumerate(RISING, 1)
    ]
    found = finding("loss.diverging", judged(steps))
    assert found is not None
    assert "the learning rate had gone from 0.1 (step 4) to 10." in found.summary


def test_a_loss_that_is_not_finite_is_an_error_and_names_its_micro_batch() -> None:
    good = [step(n, [0.5, 0.5], SQUARED_ERROR) for n in (1, 2)]
    result = judged([*good, step(3, [0.5, math.nan], SQUARED_ERROR, norm=math.nan)])
    found = finding("loss.nonfinite", result)
    assert found is not None and found.severity == "error"
    assert "at step 3, in micro-batch 2 of 2." in found.summary
    assert accused(result).keys() == {"loss.nonfinite"}
    assert next(n for n in result.tree if n.node == "loss").status == "finding"


def test_a_loss_that_is_not_finite_with_a_finite_gradient_is_a_warning() -> None:
    found = finding("loss.nonfinite", evaluation([0.5, math.inf]))
    assert found is not None and found.severity == "warning"


def test_a_gradient_that_is_not_finite_before_the_loss_is_its_cause() -> None:
    steps = [
        step(1, [0.5], SQUARED_ERROR, norm=math.inf),
        step(2, [math.nan], SQUARED_ERROR, norm=math.nan),
    ]
    result = judged(steps)
    assert accused(result) == {"norm.nonfinite": 1}
    symptom = finding("loss.nonfinite", result)
    assert symptom is not None and symptom.inhibited_by == "norm.nonfinite"


@pytest.mark.parametrize("losses", [[None], [math.nan]])
def test_without_a_finite_loss_the_tree_does_not_state_that_the_loss_is_normal(
    losses: list[float],
) -> None:
    result = judged([step(1, losses, SQUARED_ERROR, skipped=True)])
    assert next(n for n in result.tree if n.node == "loss").status == "not_measured"


def answer(result: EvaluationResult) -> tuple[str, str]:
    """The answer to the question about the loss, with its reason."""
    node = next(n for n in result.tree if n.node == "loss")
    return node.status, node.reason


def test_a_loss_that_was_finite_once_does_not_answer_for_the_last_windows() -> None:
    good = [step(n, [0.5], SQUARED_ERROR) for n in (1, 2, 3)]
    skipped = [step(n, [math.nan], SQUARED_ERROR, skipped=True) for n in range(4, 12)]
    assert answer(judged([*good, *skipped[:4]]))[0] == "ok"
    assert answer(judged([*good, *skipped])) == (
        "not_measured",
        "not in the last 8 recorded windows: the loss is not finite, and the GradScaler skipped "
        "the step",
    )
    again = step(12, [0.5], SQUARED_ERROR)
    assert answer(judged([*good, *skipped, again]))[0] == "ok"
    several = [
        step(n, [0.5 if n < 4 else math.nan], SQUARED_ERROR, skipped=n >= 4, optimizers=["A", "B"])
        for n in range(1, 12)
    ]
    assert "not in the last 8 recorded windows" in answer(judged(several))[1]
    never = [step(n, [math.nan], SQUARED_ERROR, skipped=True) for n in range(1, 12)]
    assert answer(judged(never))[1].startswith("the loss is not finite, and the GradScaler")
    overflow = [step(n, [0.5], SQUARED_ERROR, skipped=True) for n in range(4, 12)]
    assert answer(judged([*good, *overflow]))[0] == "ok"


def test_losses_that_no_step_followed_answer_for_the_end() -> None:
    good = [step(n, [0.5], SQUARED_ERROR) for n in (1, 2, 3)]

    def ended(left_open: records.LeftOpen) -> EvaluationResult:
        return judged([*good, facts(record([], 4, left_open=left_open))])

    assert answer(ended(records.LeftOpen(backwards=30, zeroed=30, nonfinite=30))) == (
        "not_measured",
        "the loss was not finite at 30 of the last 30 backwards, and no step followed",
    )
    assert answer(ended(records.LeftOpen(backwards=30, zeroed=30, nonfinite=3)))[0] == "ok"
    assert answer(ended(records.LeftOpen(planned=30, scheduled=3)))[0] == "ok"


def test_an_infinite_loss_may_come_from_the_scale_but_nan_does_not() -> None:
    def scaled(loss: float) -> EvaluationResult:
        sent = record([term(8, 1 / 8)], norm=1.0)
        sent.micro_batches[0].loss, sent.micro_batches[0].scale = loss, 2.0**16
        return judged([facts(sent)])

    assert finding("loss.nonfinite", scaled(math.inf)) is None
    assert finding("loss.nonfinite", scaled(math.nan)) is not None


def test_norms_that_exploded_before_the_loss_did_are_named_beside_it() -> None:
    steps = [step(n, [10.0**n], SQUARED_ERROR, norm=10.0**n) for n in range(1, 16)]
    named = accused(judged(steps))
    assert named.keys() == {"norm.exploding", "loss.diverging"}
    assert named["norm.exploding"] < named["loss.diverging"]
    later = [step(n, [loss], SQUARED_ERROR, norm=1.0) for n, loss in enumerate(RISING, 1)]
    for number in range(15, 40):
        later.append(step(number, [1e12], SQUARED_ERROR, norm=2.0**number))
    assert "norm.exploding" not in accused(judged(later))


def test_a_run_that_has_diverged_is_broken_until_its_loss_comes_back() -> None:
    up = [1500.0 + 1000.0 * (n % 3) for n in range(40)]
    chance = [*up, 0.0, *up, 0.0, *up[:15]]  # single losses are low, and others fall for a while
    for kind in ("NllLossBackward0", SQUARED_ERROR):
        result = evaluation([*STEADY, *chance], kind)
        found = finding("loss.diverging", result)
        assert result.verdict == "broken"
        assert found is not None and found.last_step == len(STEADY + chance)
        assert found.evidence["since"] == len(STEADY) + 1
    recovered = evaluation([*STEADY, *chance, *STEADY, *STEADY], "NllLossBackward0")
    found = finding("loss.diverging", recovered)
    assert found is not None and found.lifecycle == "resolved"
    assert recovered.verdict == "balanced" or accused(recovered).keys() == {"norm.spike"}
    answers = [next(n for n in r.tree if n.node == "loss") for r in (result, recovered)]
    assert [(n.status, n.past) for n in answers] == [
        ("finding", ""),
        ("ok", f"resolved after step {found.last_step}: {found.title}"),
    ]


def test_a_model_that_guesses_after_it_diverged_has_not_come_back() -> None:
    """The median is below the limit, and far above what the model had learnt before."""
    kind = "NllLossBackward0"
    learnt, up = [2.3 * 0.95**n + 0.1 for n in range(100)], [40.0, 50.0] * 15
    guesses = evaluation([*learnt, *up, *[2.5, 2.6] * 20], kind)
    error = finding("loss.diverging", guesses)
    assert guesses.verdict == "broken" and error is not None and error.lifecycle == "ongoing"
    assert error.summary.split(" It left")[0] == (
        "The mean cross entropy has a median of 2.55 over the last 20 steps. At the start it "
        "was at most 2.4, and the lowest median was 0.1233."
    )
    far_up = evaluation([*learnt, *[4e4, 5e4] * 5, *[2.5, 2.6] * 20], kind)
    assert far_up.verdict == "broken"
    learns_again = evaluation([*learnt, *up, *[2.5, 2.6] * 20, *learnt], kind)
    error = finding("loss.diverging", learns_again)
    assert error is not None and error.lifecycle == "resolved"


def test_another_loss_is_back_near_its_start_only() -> None:
    levels = [[1.0] * 20, [2000.0] * 20, [500.0] * 60]
    stays = evaluation([loss for level in levels for loss in level])
    error = finding("loss.diverging", stays)
    assert stays.verdict == "broken" and error is not None
    assert "median of 500 over the last 20 steps. At the start" in error.summary
    back = evaluation([loss for level in [*levels, [2.0] * 60] for loss in level])
    error = finding("loss.diverging", back)
    assert error is not None and error.lifecycle == "resolved"


@pytest.mark.parametrize("kind", ["NllLossBackward0", SQUARED_ERROR])
def test_what_a_model_had_learnt_before_it_diverged_is_regained_or_lost(kind: str) -> None:
    learnt, up = [2.3 * 0.98**n + 0.05 for n in range(100)], [4e5, 5e5] * 6
    for level, lifecycle in ((2.3, "ongoing"), (1.0, "ongoing"), (0.4, "resolved")):
        result = evaluation([*learnt, *up, *[level, 1.05 * level] * 40], kind)
        error = finding("loss.diverging", result)
        assert error is not None and error.lifecycle == lifecycle
        assert (result.verdict == "broken") == (lifecycle == "ongoing")
        if lifecycle == "ongoing":
            assert error.title == "The training loss diverged"
            assert "the lowest median was 0.4" in error.summary


def test_a_little_that_was_learnt_may_be_lost_too() -> None:
    learnt, up = [2.3 - 0.004 * n for n in range(100)], [4e5, 5e5] * 15
    guesses = evaluation([*learnt, *up, *[2.29, 2.3] * 40], "NllLossBackward0")
    assert guesses.verdict == "broken"
    noise = [2.3 + 0.1 * (n % 7 - 3) / 3 for n in range(100)]  # nothing is learnt, or lost
    back = evaluation([*noise, *up, *noise], "NllLossBackward0")
    error = finding("loss.diverging", back)
    assert error is not None and error.lifecycle == "resolved"


def test_a_cross_entropy_that_explodes_in_the_first_steps_is_not_the_start() -> None:
    exploded = evaluation([2.3, *[3e4, 5e4, 4e4] * 20], "NllLossBackward0")
    assert exploded.verdict == "broken"
    for first, guess in ((0.2, 3.5), (1e-3, 10.8)):  # a first batch of padding
        easy = evaluation([first, *[guess, 1.01 * guess] * 30], "NllLossBackward0")
        assert finding("loss.diverging", easy) is None


def test_a_divergence_of_the_first_steps_keeps_its_onset_until_it_is_over() -> None:
    result = evaluation([2.3] * 5 + [4e4, 5e4] * 11 + [2.31] * 60, "NllLossBackward0")
    error = finding("loss.diverging", result)
    assert error is not None and error.last_step > 40
    assert "It left the range of the start at step 6." in error.summary


def test_a_slow_recovery_that_continues_is_no_divergence() -> None:
    """Noise may hide for some steps that the loss falls; it is not held against the run."""
    kind = "NllLossBackward0"
    learnt, up = [1.0 + 1.5 * 0.95**n for n in range(100)], [10.0, 11.0] * 3
    noise = [1 + 0.2 * ((37 * n) % 11 - 5) / 5 for n in range(500)]
    slow = [(1.2 + 2.0 * 0.997**n) * each for n, each in enumerate(noise)]
    error = finding("loss.diverging", evaluation([*learnt, *up, *slow], kind))
    assert error is None or error.lifecycle == "resolved"
    stuck = finding("loss.diverging", evaluation([*learnt, *up, *slow[:100], *[2.5] * 400], kind))
    assert stuck is not None and stuck.lifecycle == "ongoing"
    assert "stayed above 1.684 for 500 steps" in stuck.summary
