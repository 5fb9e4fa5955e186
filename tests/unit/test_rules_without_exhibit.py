"""The rules that no museum script can show: evaluations that diverge, a run that stands still."""

from __future__ import annotations

import dataclasses
from itertools import accumulate

from gradledger.records import StepRecord
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.model.findings import EvaluationResult, Finding
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.rules.run.stalled import MOST_SHOWN
from helpers.facts import accused, facts, judged, record, term


def a_step(number: int, loss: float, time: float) -> StepRecord:
    step_record = record([term(8, 1 / 8)], number)
    step_record.micro_batches[0].loss = loss
    return dataclasses.replace(step_record, time=time)


def evaluated(
    training: list[float], validation: dict[int, float], metric: str = "eval_loss"
) -> list[Finding]:
    """What is found when the training loss goes so, and validation at some steps so."""
    findings = judgement_on(training, validation, metric).findings
    return [f for f in findings if f.rule == "eval.diverging"]


def judgement_on(
    training: list[float], validation: dict[int, float], metric: str = "eval_loss"
) -> EvaluationResult:
    steps = [facts(a_step(n, loss, float(n))) for n, loss in enumerate(training, 1)]
    state = RunState(steps[0].run)
    for step in steps:
        state.add_facts(step)
    state.set_eval_metrics({metric: validation})
    return state.result()


FALLING = [5.0 - 0.1 * n for n in range(40)]


def test_validation_that_rises_thrice_while_training_falls_is_named_with_its_numbers() -> None:
    (finding,) = evaluated(FALLING, {10: 3.0, 20: 3.1, 30: 3.2, 40: 3.3})
    assert (finding.first_step, finding.severity) == (40, "warning")
    assert finding.evidence["validation"] == [3.0, 3.1, 3.2, 3.3]
    means = [sum(FALLING[end - 10 : end]) / 10 for end in (10, 20, 30, 40)]
    assert finding.evidence["training"] == means


def test_validation_that_dips_once_or_follows_training_is_left_alone() -> None:
    assert evaluated(FALLING, {10: 3.0, 20: 3.1, 30: 3.05, 40: 3.3}) == []
    assert evaluated(FALLING[::-1], {10: 3.0, 20: 3.1, 30: 3.2, 40: 3.3}) == []
    assert evaluated(FALLING, {10: 3.0, 20: 3.1, 30: 3.2}) == []
    assert evaluated(FALLING, {10: 3.0, 20: 3.01, 30: 3.02, 40: 3.03}) == []


def test_a_divergence_is_reported_in_these_words() -> None:
    (finding,) = evaluated(FALLING, {10: 3.0, 20: 3.1, 30: 3.2, 40: 3.3})
    assert finding.title == "Validation diverges from training"
    assert finding.summary == (
        "eval_loss rose from 3 (step 10) to 3.3 (step 40) over 3 evaluations, while the training "
        "loss fell from 4.55 to 1.55."
    )
    assert finding.fix.startswith("# restore the checkpoint of the best evaluation")
    assert (finding.evidence["metric"], finding.evidence["steps"]) == (
        "eval_loss",
        [10, 20, 30, 40],
    )


def test_a_rise_may_be_small_at_first_and_must_be_seen_each_time() -> None:
    assert evaluated(FALLING, {10: 3.0, 20: 3.01, 30: 3.02, 40: 3.3}) != []
    assert evaluated(FALLING, {10: 3.0, 20: 3.2, 30: 3.2, 40: 3.3}) == []
    assert evaluated([3.0] * 20 + FALLING[20:], {10: 3.0, 20: 3.1, 30: 3.2, 40: 3.3}) == []


def test_what_is_no_loss_may_rise_and_a_perplexity_may_not() -> None:
    rising = {10: 3.0, 20: 3.1, 30: 3.2, 40: 3.3}
    assert evaluated(FALLING, rising, "Eval_Perplexity") != []
    assert evaluated(FALLING, rising, "accuracy") == []


def test_evaluations_before_any_training_loss_are_compared_with_nothing() -> None:
    evaluation = judgement_on(FALLING, {0: 3.0, 20: 3.1, 30: 3.2, 40: 3.3})
    assert evaluation.findings == []
    assert evaluation.coverage["eval.diverging"] == (
        "not_measured: no training loss before an evaluation"
    )


def test_a_divergence_that_ends_was_one_at_its_step() -> None:
    falling = [8.0 - 0.1 * n for n in range(60)]
    (finding,) = evaluated(falling, {10: 3.0, 20: 3.1, 30: 3.2, 40: 3.3, 50: 3.0})
    assert (finding.first_step, finding.steps) == (40, 1)


def test_a_silence_is_reported_with_who_is_silent_and_what_still_runs() -> None:
    assert silence([]) == "All ranks still send heartbeats."
    ended, more = " (a hung process would still send them).", list(range(MOST_SHOWN + 2))
    shown = ", ".join(map(str, more[:MOST_SHOWN]))
    assert silence([3]) == f"No heartbeat from rank 3{ended}"
    assert silence(more[:MOST_SHOWN]) == f"No heartbeat from ranks {shown}{ended}"
    one_more = f"No heartbeat from ranks {shown} and 1 more{ended}"
    assert silence(more[: MOST_SHOWN + 1]) == one_more
    assert silence(more) == f"No heartbeat from ranks {shown} and 2 more{ended}"
    assert silence([], 64) == (
        "All ranks still send heartbeats, and ran up to 64 backwards since the last step."
    )


def test_backwards_that_no_step_follows_are_named_while_the_run_goes_on() -> None:
    life = silence([], 65, "No optimizer step follows the backwards", "left_out += 1")
    assert life == (
        "All ranks still send heartbeats, and ran up to 65 backwards since the last step. No step "
        "before took more than 1 backward: the loop may go on without its step."
    )
    assert silence([0], 1234).startswith("No heartbeat from rank 0")


def silence(
    silent: list[int],
    backwards: int | None = None,
    title: str = "The run is stalled",
    fix: str = "py-spy dump",
) -> str:
    """The sentence on heartbeats after ten minutes without a step."""
    steps = [facts(a_step(n, 3.0, float(n))) for n in range(1, 21)]
    state = RunState(steps[0].run)
    for step in steps:
        state.add_facts(step)
    assert state.inactivity_timeout(0) == 60.0
    state.add_inactivity(0, 20, Inactivity(600.0, silent, backwards))
    (finding,) = state.result().findings
    assert (finding.rule, finding.severity, finding.first_step) == ("run.stalled", "warning", 20)
    assert finding.title == title
    assert fix in finding.fix
    shown = {key: finding.evidence[key] for key in ("seconds", "usual_seconds", "silent_ranks")}
    assert shown == {"seconds": 600.0, "usual_seconds": 1.0, "silent_ranks": silent}
    before, _, life = finding.summary.partition(" s. ")
    assert before == "No step has ended for 600 s; the median gap is 1.00"
    return life


def run_with_gap(seconds: float, usual: float) -> dict[str, int]:
    """Twenty usual steps, a gap, and twenty more."""
    times = [usual * n + (seconds if n >= 20 else 0.0) for n in range(40)]
    steps = [facts(a_step(n, 3.0, time)) for n, time in enumerate(times, 1)]
    return accused(judged(steps))


def test_a_run_that_stood_still_is_reported_at_the_step_that_follows() -> None:
    assert run_with_gap(600, usual=1.0) == {"run.stalled": 21}


def test_a_standstill_that_is_over_is_reported_in_these_words() -> None:
    times = [*map(float, range(20)), 619.0]
    steps = [facts(a_step(n, 3.0, time)) for n, time in enumerate(times, 1)]
    (finding,) = judged(steps).findings
    assert finding.title == "The run had stalled"
    assert finding.summary == "600 s passed before this step; the median gap is 1.00 s."
    assert (finding.evidence["seconds"], finding.evidence["usual_seconds"]) == (600.0, 1.0)
    assert "py-spy dump" in finding.fix


def gaps(*seconds: float, unseen: bool = False) -> dict[str, int]:
    """Steps with these gaps; before the last one, a step may not have been seen."""
    times = list(accumulate(seconds, initial=0.0))
    numbers = [*range(1, len(times)), len(times) + unseen]
    steps = [facts(a_step(n, 3.0, time)) for n, time in zip(numbers, times, strict=True)]
    return accused(judged(steps))


def test_ten_gaps_are_enough_to_know_what_is_usual() -> None:
    assert gaps(*[1.0] * 10, 600.0) == {"run.stalled": 12}
    assert gaps(*[1.0] * 9, 600.0) == {}


def test_usual_is_what_the_last_fifty_gaps_were() -> None:
    assert gaps(*[120.0] * 60, *[1.0] * 50, 600.0) == {"run.stalled": 112}
    assert gaps(*[120.0] * 60, *[1.0] * 20, 600.0) == {}


def test_a_gap_in_which_steps_were_not_seen_is_no_standstill() -> None:
    assert gaps(*[1.0] * 20, 600.0, unseen=True) == {}


def test_a_pause_below_a_minute_or_usual_for_this_run_is_left_alone() -> None:
    assert run_with_gap(50, usual=1.0) == {}
    assert run_with_gap(600, usual=120.0) == {}
