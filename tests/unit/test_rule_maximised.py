"""loss.maximised: a criterion whose gradient the optimizer follows upwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from gradledger import records
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term

RISING = (1.0, 1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0)
LOW = tuple(loss / 10 for loss in RISING)
CROSS_ENTROPY = "NllLossBackward0"


def judge(
    losses: Sequence[float] = RISING,
    kind: str = CROSS_ENTROPY,
    sign: int = -1,
    layers: int = 4,
    beside: Sequence[records.Term] = (),
    **fields: Any,
) -> tuple[Finding | None, str]:
    loss = dataclasses.replace(term(8, sign / 8), kind=kind)
    loss.classes = 3 if kind == CROSS_ENTROPY else None
    steps = []
    for number, value in enumerate(losses, 1):
        of_step = record([loss, *beside], number, **fields)
        of_step.layers = records.Layers(layers)
        of_step.micro_batches[0].loss = sign * value
        steps.append(facts(of_step))
    evaluation = judged(steps)
    findings = (f for f in evaluation.findings if f.rule == "loss.maximised")
    return next(findings, None), evaluation.coverage["loss.maximised"]


def test_a_cross_entropy_of_a_model_that_guesses_rises() -> None:
    finding, _ = judge()
    assert finding is not None and finding.severity == "error"
    assert finding.evidence["loss_first"] == 1.2 and finding.evidence["loss_last"] == 5.0
    assert "multiplied by a negative number" in finding.summary


def test_an_optimizer_that_maximises() -> None:
    finding, _ = judge(sign=1, maximises=True)
    assert finding is not None and finding.severity == "error"
    assert "maximize=True" in finding.summary and finding.evidence["maximize"]


def test_both_signs_are_reversed() -> None:
    assert judge(maximises=True) == (None, "ok: the loss is minimised")


def test_the_loop_reverses_the_gradient() -> None:
    assert judge(post_factor=-1.0) == (None, "ok: the loss is minimised")


def test_a_trained_model_forgets() -> None:
    finding, _ = judge(LOW)
    assert finding is not None and finding.severity == "info"


def test_a_loss_that_does_not_rise() -> None:
    assert judge(RISING[::-1]) == (None, "ok")


def test_a_short_run_shows_no_rise() -> None:
    assert judge(RISING[:9]) == (None, "not_measured: needs 10 steps")


@pytest.mark.parametrize(("layers", "severity"), [(4, "warning"), (1, "info")])
def test_a_distance(layers: int, severity: str) -> None:
    losses = [loss**3 for loss in RISING]
    finding, _ = judge(losses, "MseLossBackward0", layers=layers)
    assert finding is not None and finding.severity == severity


def test_a_part_of_the_loss_is_minimised() -> None:
    other = dataclasses.replace(term(8, 1 / 8), kind=CROSS_ENTROPY)
    assert judge(beside=[other]) == (None, "ok: the loss is minimised")


@pytest.mark.parametrize("kind", ["MeanBackward0", "KlDivBackward0"])
def test_another_loss_may_be_maximised_by_definition(kind: str) -> None:
    assert judge(kind=kind) == (None, "not_applicable: no loss of one known criterion alone")


def test_weights_of_single_elements_may_be_advantages() -> None:
    loss = dataclasses.replace(term(8, -1 / 8), kind=CROSS_ENTROPY, weight_min=0.1, weight_max=0.2)
    steps = [facts(record([loss], number)) for number in range(1, 13)]
    assert judged(steps).coverage["loss.maximised"].startswith("not_applicable: no loss of one")


def test_updates_by_hand_have_no_known_direction() -> None:
    assert judge(by_hand=True)[1].startswith("not_applicable")


def test_a_loss_times_zero_has_no_direction() -> None:
    assert judge(sign=0)[1].startswith("not_applicable: no loss of one known criterion")
