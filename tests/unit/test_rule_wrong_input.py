"""loss.wrong_input: probabilities where a loss takes logits, and the reverse."""

from __future__ import annotations

import dataclasses

import pytest

from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term


def judge(kind: str, given: str | None, steps: int = 3) -> tuple[Finding | None, str]:
    loss = dataclasses.replace(term(8, 1 / 8), kind=kind, input=given)
    evaluation = judged([facts(record([loss], number)) for number in range(1, steps + 1)])
    findings = (f for f in evaluation.findings if f.rule == "loss.wrong_input")
    return next(findings, None), evaluation.coverage["loss.wrong_input"]


@pytest.mark.parametrize(
    ("kind", "given", "severity"),
    [
        ("NllLossBackward0", "log_softmax(softmax)", "warning"),
        ("NllLossBackward0", "log_softmax(sigmoid)", "info"),
        ("NllLoss2DBackward0", "softmax", "warning"),
        ("NllLossBackward0", "linear", "warning"),
        ("BinaryCrossEntropyWithLogitsBackward0", "sigmoid", "warning"),
        ("BinaryCrossEntropyWithLogitsBackward0", "softmax", "info"),
    ],
)
def test_an_input_that_the_loss_does_not_take(kind: str, given: str, severity: str) -> None:
    finding, _ = judge(kind, given)
    assert finding is not None and finding.severity == severity
    assert (finding.first_step, finding.steps) == (2, 2)
    assert "In 3 early micro-batches, the loss gets the output of a" in finding.summary
    assert judge(kind, given, steps=1)[0] is None


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("NllLossBackward0", "log_softmax"),
        ("NllLossBackward0", "other"),
        ("BinaryCrossEntropyWithLogitsBackward0", "linear"),
    ],
)
def test_an_input_that_the_loss_takes(kind: str, given: str) -> None:
    assert judge(kind, given) == (None, "ok")


def test_an_input_that_was_not_read() -> None:
    finding, coverage = judge("NllLossBackward0", None)
    assert finding is None and coverage.startswith("not_applicable: no cross entropy")


def test_another_backward_may_compute_the_rest_of_the_loss() -> None:
    loss = dataclasses.replace(term(8, 1 / 8), kind="NllLossBackward0", input="linear")
    steps = [facts(record([loss, term(8, 1 / 8)], number)) for number in range(1, 4)]
    assert judged(steps).coverage["loss.wrong_input"] == "ok"
