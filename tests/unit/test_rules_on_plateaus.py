"""ReduceLROnPlateau that is given the loss of single micro-batches."""

from __future__ import annotations

from typing import Any

import pytest

from gradledger.records import Event, StepRecord
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term

NOISY = [1.0, 0.7, 0.9, 0.6, 0.8, 0.5, 0.7, 0.4]


def steps(
    losses: list[float], factor: float = 1.0, same: bool = False, count: int = 2
) -> list[StepRecord]:
    """Steps of some micro-batches; the scheduler gets the last loss of each before the next one."""
    result = []
    for number, loss in enumerate(losses, 1):
        step = record([term(8, 1 / 8)] * count, number, lr=0.1 if number < 7 else 0.01)
        for index, micro_batch in enumerate(step.micro_batches):
            micro_batch.loss = loss
            micro_batch.fingerprint = 1.0 if same else number + index / count
        if number > 1:
            step.events = [Event("schedule", metric=factor * losses[number - 2])]
        result.append(step)
    return result


def found(losses: list[float], **more: Any) -> Finding | None:
    evaluation = judged([facts(step) for step in steps(losses, **more)])
    by_rule = {each.rule: each for each in evaluation.findings}
    return by_rule.get("schedule.plateau_of_one_batch")


def test_the_loss_of_each_last_micro_batch_is_a_warning_once_the_rate_fell() -> None:
    finding = found(NOISY)
    assert finding is not None and finding.severity == "warning"
    assert "fell from 0.1 to 0.01" in finding.summary
    before = found(NOISY[:6])
    assert before is not None and before.severity == "info"


def test_a_call_for_each_micro_batch_is_information() -> None:
    """The epoch of a small data set may have only one."""
    finding = found(NOISY, count=1)
    assert finding is not None and finding.severity == "info"
    assert "patience counts micro-batches" in finding.summary


@pytest.mark.parametrize(
    "arguments",
    [
        {"losses": NOISY[:5]},  # four calls
        {"losses": NOISY, "factor": 0.9},  # another value
        {"losses": NOISY, "same": True},  # the same data at each step
        {"losses": sorted(NOISY, reverse=True)},  # it falls steadily
    ],
)
def test_other_values_and_losses_without_noise_are_no_finding(arguments: dict[str, Any]) -> None:
    assert found(**arguments) is None
