"""Warm-ups that are longer than the training."""

from __future__ import annotations

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


def elsewhere(rates: list[float], steps: int | None = 9) -> list[Finding]:
    """The findings of steps at these rates, with as many steps of a schedule at the first."""
    more = [
        {} if steps is None else {"elsewhere": steps + n, "rate_elsewhere": 0.02}
        for n in range(len(rates))
    ]
    records = [
        record([term(8, 1 / 8)], number, lr=rate, **fields)
        for number, (rate, fields) in enumerate(zip(rates, more, strict=True), 1)
    ]
    evaluation = judged([facts(each) for each in records])
    return [f for f in evaluation.findings if f.rule == "schedule.of_another_optimizer"]


def test_a_schedule_that_sets_another_optimizer_is_a_warning_at_a_constant_rate() -> None:
    (finding,) = elsewhere([0.1] * 10)
    assert (finding.severity, finding.first_step) == ("warning", 10)
    assert "stepped 18 times for another optimizer of the same parameters" in finding.summary
    assert "whose rate is 0.02 by now" in finding.summary
    assert "stepped at a learning rate of 0.1 for at least 10 steps" in finding.summary
    assert not elsewhere([0.1] * 9)
    assert not elsewhere([0.1 * 0.9**n for n in range(20)])  # the loop copies it
    assert not elsewhere([0.1] * 20, steps=None)
