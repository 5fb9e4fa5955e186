"""Warm-ups that are longer than the training."""

from __future__ import annotations

from typing import Any

import pytest

from gradledger.records import LeftOpen
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term


def found(planned: int, warmup: int = 0) -> list[Finding]:
    """The findings of a training of ten steps that ends with this."""
    steps = [facts(record([term(8, 1 / 8)], number)) for number in range(1, 11)]
    left = LeftOpen(planned=planned, scheduled=10, trained=planned, warmup=warmup)
    ended = record([], 11, skipped=True, post_factor=None, left_open=left)
    return [f for f in judged([*steps, facts(ended)]).findings if f.rule.startswith("schedule.")]


def test_a_warm_up_longer_than_the_training_is_a_warning() -> None:
    (finding,) = found(250, warmup=500)
    assert (finding.rule, finding.severity) == ("schedule.only_warmup", "warning")
    assert "planned for 250 steps, has made 10, and has a warm-up of 500 steps" in finding.summary
    assert finding.first_step == 10


def test_a_short_training_may_try_out_a_longer_one() -> None:
    (finding,) = found(10, warmup=500)
    assert (finding.rule, finding.severity) == ("schedule.only_warmup", "info")


def test_other_plans_that_are_unfinished_have_no_warm_up() -> None:
    assert [f.rule for f in found(40)] == ["schedule.planned_in_other_steps"]


# ---------------------------------------------------------------------- of another optimizer


def elsewhere(step: int, schedule_steps: int | None, **fields: Any) -> list[Finding]:
    """The findings of a step, with as many steps of the schedule of an earlier optimizer."""
    if schedule_steps is not None:
        fields |= {"elsewhere": schedule_steps, "rate_elsewhere": 0.02}
    evaluation = judged([facts(record([term(8, 1 / 8)], step, lr=0.1, **fields))])
    return [f for f in evaluation.findings if f.rule == "schedule.of_another_optimizer"]


def test_a_schedule_of_an_optimizer_that_never_stepped_is_a_warning() -> None:
    (finding,) = elsewhere(40, 39)
    assert finding.severity == "warning"
    assert "scheduler stepped 39 times for another SGD" in finding.summary
    assert "its rate is now 0.02" in finding.summary
    assert "made 40 steps, all at a learning rate of 0.1:" in finding.summary
    (finding,) = elsewhere(40, 39, lrs=[0.1, 0.2])
    assert "the same learning rates (0.1 in the first parameter group)" in finding.summary
    assert not elsewhere(40, None)


def test_a_rate_that_is_copied_from_another_schedule_now_and_then_withdraws_the_finding() -> None:
    def judged_with(last_rate: float) -> set[str]:
        steps: list[dict[str, Any]] = [{"elsewhere": 40, "rate_elsewhere": 0.02, "lr": 0.1}]
        steps.append({"lr": last_rate})
        records = [record([term(8, 1 / 8)], 40 + n, **fields) for n, fields in enumerate(steps)]
        return {f.rule for f in judged([facts(each) for each in records]).findings}

    assert "schedule.of_another_optimizer" not in judged_with(0.02)
    assert "schedule.of_another_optimizer" in judged_with(0.1)  # the other optimizer was dropped


@pytest.mark.parametrize(("step", "schedule_steps"), [(9, 10), (11, 9)])
def test_few_steps_of_a_schedule_are_no_finding(step: int, schedule_steps: int) -> None:
    assert elsewhere(10, 10) and not elsewhere(step, schedule_steps)
