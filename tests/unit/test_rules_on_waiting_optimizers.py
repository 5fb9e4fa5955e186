"""Optimizers that step on nothing while another one trains."""

from __future__ import annotations

import pytest

from gradledger.records import LeftOpen
from helpers.facts import facts, judged, record, term


@pytest.mark.parametrize(
    ("steps", "trainable", "had", "found"),
    [(49, 2, False, []), (50, 2, False, ["info"]), (60, 0, False, ["info"]), (60, 2, True, [])],
)
def test_one_of_several_optimizers_that_no_backward_reaches_is_named_after_50_steps(
    steps: int, trainable: int, had: bool, found: list[str]
) -> None:
    reached = [facts(record([term(8, 1 / 8)], 1), optimizers=["SGD", "Adam"])] * had
    waiting = [
        facts(record([], n, norm=None, empty=True, trainable=trainable), optimizers=["SGD", "Adam"])
        for n in range(1 + had, steps + 1 + had)
    ]
    findings = [f for f in judged([*reached, *waiting]).findings if f.rule == "loop.no_gradients"]
    assert [f.severity for f in findings] == found
    assert all((f.first_step, f.steps) == (1, steps) for f in findings)
    assert all(f.title == "Optimizer 0 (SGD) has never had a gradient" for f in findings)


@pytest.mark.parametrize(
    ("steps", "had", "found"), [(9, False, []), (10, False, ["info"]), (10, True, [])]
)
def test_at_the_end_of_the_process_10_steps_are_enough(
    steps: int, had: bool, found: list[str]
) -> None:
    several = ["SGD", "Adam"]
    reached = [facts(record([term(8, 1 / 8)], 1), optimizers=several)] * had
    waiting = [
        facts(record([], n, norm=None, empty=True, trainable=2), optimizers=several)
        for n in range(1 + had, steps + 1 + had)
    ]
    ended = facts(record([], steps + 1 + had, left_open=LeftOpen()), optimizers=several)
    findings = judged([*reached, *waiting, ended]).findings
    findings = [f for f in findings if f.rule == "loop.no_gradients"]
    assert [f.severity for f in findings] == found
    assert all((f.first_step, f.last_step, f.steps) == (1, steps, steps) for f in findings)
