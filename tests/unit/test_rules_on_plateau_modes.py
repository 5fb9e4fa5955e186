"""ReduceLROnPlateau whose mode takes a better metric for a worse one."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from gradledger.records import Event, StepRecord
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term

LOSSES = [1.4, 1.2, 1.0, 0.8, 0.6, 0.5, 0.4, 0.3]
COUNTS = [24, 40, 45, 61, 70, 77, 83]
ACCURACIES = [count / 96 for count in COUNTS]
OVERFITS = [0.355, 0.402, 0.471, 0.55, 0.64, 0.71, 0.795]  # a validation loss


def steps(
    metrics: list[float],
    mode: Literal["min", "max"],
    losses: list[float] = LOSSES,
    classes: int | None = None,
) -> list[StepRecord]:
    """Steps of two micro-batches with equal losses; a call before each but the first."""
    result = []
    for number, loss in enumerate(losses, 1):
        each = term(8, 1 / 16)
        each.kind, each.classes = "NllLossBackward0", classes
        step = record([each] * 2, number, lr=0.1 if number < 5 else 0.01)
        for micro_batch in step.micro_batches:
            micro_batch.loss = loss / 2
        if 1 < number <= len(metrics) + 1:
            step.events = [Event("schedule", metric=metrics[number - 2], mode=mode)]
        result.append(step)
    return result


def finding_of(*arguments: Any, **more: Any) -> Finding | None:
    evaluation = judged([facts(step) for step in steps(*arguments, **more)])
    by_rule = {each.rule: each for each in evaluation.findings}
    return by_rule.get("schedule.plateau_mode")


def test_a_training_loss_that_should_rise_is_a_warning() -> None:
    finding = finding_of(LOSSES[:7], "max")
    assert finding is not None and finding.severity == "warning"
    assert "the loss that the training minimises" in finding.summary
    assert "fell from 0.1 to 0.01" in finding.summary


@pytest.mark.parametrize(("whole", "text"), [(1, "1/96"), (100, "100/96")])
def test_a_share_that_should_fall_is_information(whole: int, text: str) -> None:
    """It may be an error rate that rises, as where a model forgets."""
    finding = finding_of([whole * value for value in ACCURACIES], "min")
    assert finding is not None and finding.severity == "info"
    assert f"a multiple of {text} at each of these calls, as an accuracy" in finding.summary


@pytest.mark.parametrize(
    ("classes", "start", "severity"),
    [
        (4, 0, "warning"),
        (2, 0, "info"),
        (1_000, 0, "info"),
        (4, 12 / 96, "info"),
        (None, 0, "info"),
    ],
)
def test_a_share_that_is_small_before_and_large_after_learning_is_an_accuracy(
    classes: int | None, start: float, severity: str
) -> None:
    """The first loss is 1.4: ln 4, and far below ln 999."""
    metrics = [value + start for value in ACCURACIES]
    finding = finding_of(metrics, "min", classes=classes)
    assert finding is not None and finding.severity == severity


@pytest.mark.parametrize(
    ("metrics", "mode"),
    [
        (LOSSES[:7], "min"),
        (ACCURACIES, "max"),
        ([-loss for loss in LOSSES[:7]], "max"),
        ([1.2 * loss for loss in LOSSES[:7]], "max"),  # a validation loss, or a return
        (ACCURACIES[::-1], "max"),  # a model forgets
        (ACCURACIES[:4], "min"),  # four calls
        ([0.31, 0.44, 0.52, 0.63, 0.71, 0.78, 0.83], "min"),  # may be a rounded loss
        ([0.3127, 0.4411, 0.5283, 0.6317, 0.7129, 0.7893, 0.8371], "min"),
        ([0.31272183, 0.4411173, 0.52833917, 0.63170811, 0.7129441], "min"),  # it overfits
        ([0.9, 1.1, 0.8, 0.7, 0.6, 0.5, 0.4], "max"),  # the second is the best
        ([count / 8 for count in COUNTS], "min"),  # a mean of whole numbers
    ],
)
def test_a_metric_whose_direction_is_right_or_not_known_is_no_finding(
    metrics: list[float], mode: str
) -> None:
    assert finding_of(metrics, mode) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batches", [1, 3, 8])
def test_a_loss_of_low_precision_is_no_share_of_counts(dtype: torch.dtype, batches: int) -> None:
    """Its values, and means of them, are multiples of a power of two."""
    losses = [
        [torch.tensor(loss * (1 + 0.013 * n), dtype=dtype).item() for n in range(batches)]
        for loss in OVERFITS
    ]
    assert finding_of([sum(each) / batches for each in losses], "min") is None


def test_a_share_that_gets_worse_with_the_training_loss_is_no_finding() -> None:
    assert finding_of(ACCURACIES, "min", losses=LOSSES[::-1]) is None


def test_a_later_value_that_is_better_than_the_first_ends_the_finding() -> None:
    losses = [1.4 - 0.1 * number for number in range(12)]
    for mode, metrics in (("max", [*losses[:9], 1.5]), ("min", [*ACCURACIES, 0.8, 0.7, 0.2])):
        finding = finding_of(metrics, mode, losses=losses)
        assert finding is not None and finding.last_step == 10  # the better one is given before 11
