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
