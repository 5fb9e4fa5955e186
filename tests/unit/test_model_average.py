"""Ranks that combine their models: an average is healthy, a sum is not."""

from __future__ import annotations

from typing import Any

import pytest

from gradledger.records import Samples
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import accused, facts, judged, record, term

OWN = ([1.0, -2.0, 0.5, 0.0], [3.0, 1.0, -0.25, 0.0])
RULE = "ddp.wrong_model_average"


def step(factor: float, own: Any = OWN, outer: bool = False, lr: float = 0.7) -> StepFacts:
    """Ranks whose models became ``factor`` times their sum; ``outer``: the outer gradient did."""
    combined = [factor * sum(column) for column in zip(*own, strict=True)]
    ranks = [record([term(10, 1 / 10)], models=Samples(list(x), combined), lr=lr) for x in own]
    for sent in ranks:
        sent.micro_batches = [] if outer else sent.micro_batches
    return facts(*ranks)


@pytest.mark.parametrize(("factor", "named"), [(1 / 2, False), (1, True), (1 / 4, True)])
def test_parameters_should_become_their_average(factor: float, named: bool) -> None:
    assert (RULE in accused(judged([step(factor)]))) == named


@pytest.mark.parametrize(("lr", "named"), [(0.7, True), (0.35, False)])
def test_a_small_outer_rate_may_stand_for_the_division(lr: float, named: bool) -> None:
    assert (RULE in accused(judged([step(1, outer=True, lr=lr)]))) == named
    assert RULE not in accused(judged([step(1 / 2, outer=True, lr=lr)]))


@pytest.mark.parametrize(("optimizer", "named"), [("SGD", True), ("FedAdam", False)])
def test_an_outer_gradient_should_not_be_what_the_local_steps_added(
    optimizer: str, named: bool
) -> None:
    """An optimizer of the script's may add its gradient."""
    away = step(-1 / 2, outer=True)
    away.run.optimizers[:] = [optimizer]
    findings = [f for f in judged([away]).findings if f.rule == RULE]
    assert bool(findings) is named
    assert not named or findings[0].title.startswith("The outer step moves the model away")
    assert RULE not in accused(judged([step(-1 / 2)]))  # no outer step


@pytest.mark.parametrize(("factor", "named"), [(0.6, True), (1 / 2, False), (0.45, False)])
def test_parameters_that_become_a_multiple_of_their_average_twice_are_reported(
    factor: float, named: bool
) -> None:
    """Once, it may be an outer step of parameters that began at zero; below 1, a decay."""
    first, second = step(factor), step(factor)
    second.step = first.step + 1
    findings = [f for f in judged([first, second]).findings if f.rule == RULE]
    assert bool(findings) is named
    assert not named or "1.2 times the average" in findings[0].title
    coverage = judged([first, second]).coverage[RULE]
    assert coverage.startswith("not_measured: the parameters become 0.9") == (factor == 0.45)


def test_equal_models_and_weighted_averages_are_not_judged() -> None:
    assert RULE not in accused(judged([step(1, own=(OWN[0], OWN[0]))]))
    assert RULE not in accused(judged([step(0.8)]))


@pytest.mark.parametrize(
    ("factor", "named"), [(1 / 2, False), (1, True), (1 / 4, True), (0.8, False)]
)
def test_models_may_be_sent_in_half_precision(factor: float, named: bool) -> None:
    """bf16 has 8 bits: what becomes equal is a sum up to 1 in 256."""
    combined = [factor * sum(column) for column in zip(*OWN, strict=True)]
    rounded = [
        value * (1 + error) for value, error in zip(combined, (3e-3, -2e-3, 1e-3, 0), strict=True)
    ]
    sent = [record([term(10, 1 / 10)], models=Samples(list(x), rounded), lr=0.7) for x in OWN]
    assert (RULE in accused(judged([facts(*sent)]))) == named
