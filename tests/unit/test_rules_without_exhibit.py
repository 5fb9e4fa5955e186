"""The rules that no museum script can show: evaluations that diverge, a run that stands still."""

from __future__ import annotations

import dataclasses

from gradledger.records import StepRecord
from gradledger_monitor.engine import Engine
from gradledger_monitor.findings import Finding
from helpers.facts import accused, facts, judged, record, term


def a_step(number: int, loss: float, time: float) -> StepRecord:
    made = record([term(8, 1 / 8)], number)
    made.micro_batches[0].loss = loss
    return dataclasses.replace(made, time=time)


def evaluated(training: list[float], validation: dict[int, float]) -> list[Finding]:
    """What is found when the training loss goes so, and validation at some steps so."""
    steps = [facts(a_step(n, loss, float(n))) for n, loss in enumerate(training, 1)]
    engine = Engine(steps[0].run)
    for step in steps:
        engine.see(step)
    engine.evaluated({"eval_loss": validation})
    return [f for f in engine.judgement().findings if f.rule == "eval.diverging"]


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


def run_with_gap(seconds: float, usual: float) -> dict[str, int]:
    """Twenty usual steps, a gap, and twenty more."""
    times = [usual * n + (seconds if n >= 20 else 0.0) for n in range(40)]
    steps = [facts(a_step(n, 3.0, time)) for n, time in enumerate(times, 1)]
    return accused(judged(steps))


def test_a_run_that_stood_still_is_told_at_the_step_that_follows() -> None:
    assert run_with_gap(600, usual=1.0) == {"run.stalled": 21}


def test_a_pause_below_a_minute_or_usual_for_this_run_is_left_alone() -> None:
    assert run_with_gap(50, usual=1.0) == {}
    assert run_with_gap(600, usual=120.0) == {}
