"""What a loop throws away or lets grow, at the edge of what is told."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gradledger.records import Event
from gradledger_monitor.findings import Finding
from gradledger_monitor.rules.norm.exploding import Exploding
from helpers.facts import facts, judged, record, term


def thrown_away(norm: float | None = None, loss: float = 1.0) -> Finding | None:
    """Of two micro-batches the first was zeroed before the step; a clip saw a norm before."""
    made = record([term(10, 0.1), term(10, 0.1)], events=[Event("clip_norm", 1, norm=norm)])
    made.micro_batches[0].loss = loss
    made.micro_batches[1].fresh = True
    findings = judged([facts(made)]).findings
    return next((f for f in findings if f.rule == "loop.discarded_microbatches"), None)


@pytest.mark.parametrize("norm", [None, 3.0])
def test_micro_batches_that_no_step_used_are_told(norm: float | None) -> None:
    told = thrown_away(norm)
    assert told is not None
    assert told.summary == (
        "Accumulated and zeroed before any step used it: 1 micro-batch with 10 tokens."
    )


def test_a_loop_that_had_a_reason_to_throw_them_away_is_left_alone() -> None:
    assert thrown_away(math.inf) is None
    assert thrown_away(math.nan) is None
    assert thrown_away(loss=math.nan) is None


def growing(steps: int, factor: float = 1.6, loss: float = 1.1) -> Finding | None:
    """Norm and loss that grow step by step after ten calm ones."""
    course = [(1.0, 2.0)] * 10 + [(factor**n, 2.0 * loss**n) for n in range(1, steps + 1)]
    windows = []
    for number, (norm, value) in enumerate(course, 1):
        made = record([term(8, 1 / 8)], number, norm=norm)
        made.micro_batches[0].loss = value
        windows.append(facts(dataclasses.replace(made, time=float(number))))
    return next((f for f in judged(windows).findings if f.rule == "norm.exploding"), None)


def test_eight_steps_of_growth_in_a_row_are_told_and_seven_are_not() -> None:
    assert growing(Exploding.growing - 1) is None
    told = growing(Exploding.growing)
    assert told is not None and told.first_step == 10 + Exploding.growing


def test_a_norm_that_grows_tenfold_or_with_a_falling_loss_is_no_explosion() -> None:
    assert growing(8, factor=10 ** (1 / 8.1)) is None
    assert growing(8, factor=10 ** (1 / 7.9)) is not None
    assert growing(8, loss=0.9) is None


def far_above(steps: int, norm: float) -> Finding | None:
    """A hundred steps at most at 1, then some at another norm, under a loss that stays."""
    course = [1.0] * 100 + [norm] * steps
    windows = [facts(record([term(8, 1 / 8)], n, norm=each)) for n, each in enumerate(course, 1)]
    return next((f for f in judged(windows).findings if f.rule == "norm.exploding"), None)


def test_ten_steps_at_more_than_ten_times_the_largest_early_norm_are_told() -> None:
    assert far_above(9, 11.0) is None
    told = far_above(10, 11.0)
    assert told is not None and told.first_step == 110
    assert far_above(20, 10.0) is None
