"""ReduceLROnPlateau whose mode takes a better metric for a worse one."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from gradledger.records import Event, StepRecord
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term

LOSSES = [1.4, 1.2, 1.0, 0.8, 0.6, 0.5, 0.4, 0.3]
ACCURACIES = [24 / 96, 40 / 96, 45 / 96, 61 / 96, 70 / 96, 77 / 96, 83 / 96]


def steps(
    metrics: list[float], mode: Literal["min", "max"], losses: list[float] = LOSSES
) -> list[StepRecord]:
    """Steps of two micro-batches with equal losses; a call before each but the first."""
    result = []
    for number, loss in enumerate(losses, 1):
        step = record([term(8, 1 / 8)] * 2, number, lr=0.1 if number < 5 else 0.01)
        for micro_batch in step.micro_batches:
            micro_batch.loss = loss / 2
        if 1 < number <= len(metrics) + 1:
            step.events = [Event("schedule", metric=metrics[number - 2], mode=mode)]
        result.append(step)
    return result


def found(*arguments: Any, **more: Any) -> Finding | None:
    evaluation = judged([facts(step) for step in steps(*arguments, **more)])
    by_rule = {each.rule: each for each in evaluation.findings}
    return by_rule.get("schedule.plateau_mode")


@pytest.mark.parametrize(
    ("metrics", "mode", "text"),
    [
        (LOSSES[:7], "max", "the loss that the training minimises"),
        ([1.2 * loss for loss in LOSSES[:7]], "max", "within a factor of 2 of the training loss"),
        (ACCURACIES, "min", "a multiple of 1/96 at each call, as an accuracy"),
        ([100 * value for value in ACCURACIES], "min", "a multiple of 1/96"),
    ],
)
def test_a_metric_that_gets_better_against_the_mode_is_a_warning(
    metrics: list[float], mode: str, text: str
) -> None:
    finding = found(metrics, mode)
    assert finding is not None and finding.severity == "warning"
    assert text in finding.summary
    assert "fell from 0.1 to 0.01" in finding.summary


@pytest.mark.parametrize(
    ("metrics", "mode"),
    [([1 - value for value in ACCURACIES], "max"), ([n / 96 for n in range(12, 47, 5)], "min")],
)
def test_a_share_that_may_be_of_either_kind_is_information(metrics: list[float], mode: str) -> None:
    """An accuracy falls where a model forgets; an error rate rises where it overfits."""
    finding = found(metrics, mode)
    assert finding is not None and finding.severity == "info"


@pytest.mark.parametrize(
    ("metrics", "mode"),
    [
        (LOSSES[:7], "min"),
        (ACCURACIES, "max"),
        ([-loss for loss in LOSSES[:7]], "max"),
        (ACCURACIES[:4], "min"),  # four calls
        ([0.31, 0.44, 0.52, 0.63, 0.71, 0.78, 0.83], "min"),  # may be a rounded loss
        ([0.3127, 0.4411, 0.5283, 0.6317, 0.7129, 0.7893, 0.8371], "min"),
        ([0.31272183, 0.4411173, 0.52833917, 0.63170811, 0.7129441], "min"),  # it overfits
        ([0.9, 1.1, 0.8, 0.7, 0.6, 0.5, 0.4], "max"),  # the second is the best
    ],
)
def test_a_metric_whose_direction_is_right_or_not_known_is_no_finding(
    metrics: list[float], mode: str
) -> None:
    assert found(metrics, mode) is None


def test_a_share_that_gets_worse_with_the_training_loss_is_no_finding() -> None:
    assert found(ACCURACIES, "min", losses=LOSSES[::-1]) is None
