"""Layers whose gradient ends in mid-run: which are reported, and which are silent."""

from __future__ import annotations

from collections.abc import Sequence

from gradledger.records import Layers
from gradledger_monitor.model.findings import EvaluationResult, Finding
from helpers.facts import facts, judged, record, term

Gradients = dict[str, float | None]

BOTH: Gradients = {"body": 1.0, "head": 1.0}
HEAD: Gradients = {"body": None, "head": 1.0}
NONE: Gradients = {"body": None, "head": None}
FROZEN: Gradients = {"head": 1.0}


def ended(*ranks: Sequence[Gradients]) -> Finding | None:
    """The finding in a run that measures its layers at every step, by rank."""
    findings = _evaluated(*ranks).findings
    return next((f for f in findings if f.rule == "norm.gradient_ends"), None)


def coverage(*ranks: Sequence[Gradients]) -> str:
    """What is stated of the rule without a finding."""
    return _evaluated(*ranks).coverage["norm.gradient_ends"]


def _evaluated(*ranks: Sequence[Gradients]) -> EvaluationResult:
    steps = []
    for number, of_ranks in enumerate(zip(*ranks, strict=True), 1):
        records = [
            record([term(8, 1 / 8 / len(ranks))], number, layers=_layers(gradients))
            for gradients in of_ranks
        ]
        steps.append(facts(*records))
    return judged(steps)


def _layers(gradients: Gradients) -> Layers:
    count = len(gradients)
    return Layers(
        names=[*gradients],
        sizes=[8.0] * count,
        gradient=[*gradients.values()],
        parameter=[1.0] * count,
        update=[0.01] * count,
        observed=30,
        parameters=count,
    )


def test_a_layer_whose_gradient_ends_is_information() -> None:
    finding = ended([BOTH] * 7 + [HEAD] * 12)
    assert finding is not None
    assert (finding.severity, finding.first_step, finding.last_step) == ("info", 17, 19)
    assert finding.title == "1 layer has no gradient any more"
    assert finding.summary.startswith(
        "body had a gradient at 7 sampled steps in a row, and none other than 0 at the last 12, "
        "from step 8 on. "
        "It requires one, and SGD holds it."
    )
    assert finding.evidence["layers"] == ["body"] and finding.evidence["since"] == 8


def test_too_few_steps_with_or_without_a_gradient_are_silent() -> None:
    assert ended([BOTH] * 4 + [HEAD] * 30) is None
    assert ended([BOTH] * 5 + [HEAD] * 9) is None
    assert ended([BOTH] * 5 + [HEAD] * 10) is not None


def test_while_too_few_steps_follow_it_is_not_measured() -> None:
    reason = "body had no gradient other than 0 from step 6 on: needs 10 sampled steps from there"
    assert coverage([BOTH] * 5 + [HEAD] * 9) == f"not_measured: {reason}"
    assert coverage([BOTH] * 5 + [HEAD] * 2 + [NONE]) == f"not_measured: {reason}"
    assert coverage([BOTH] * 5 + [HEAD] * 9 + [BOTH]) == "ok"
    assert coverage([BOTH] * 5 + [FROZEN]) == coverage([BOTH] * 2) == "ok"
    assert _evaluated([BOTH] * 5 + [HEAD] * 9).verdict == "balanced"


def test_a_frozen_layer_is_silent() -> None:
    assert ended([BOTH] * 7 + [FROZEN] * 20) is None


def test_a_layer_that_came_back_once_is_silent() -> None:
    assert ended([BOTH] * 7 + [HEAD] + [BOTH] * 20 + [HEAD] * 20) is None


def test_a_gradient_of_0_is_reported_too() -> None:
    assert ended([BOTH] * 7 + [{"body": 0.0, "head": 1.0}] * 20) is not None


def test_without_any_gradient_it_is_silent() -> None:
    assert ended([BOTH] * 7 + [NONE] * 20) is None


def test_a_layer_whose_gradient_begins_later_is_followed_from_there() -> None:
    assert ended([HEAD] * 3 + [BOTH] * 7 + [HEAD] * 20) is not None
    assert ended([HEAD] * 20 + [BOTH] * 20) is None


def test_a_layer_that_has_a_gradient_on_one_rank_is_silent() -> None:
    without = [BOTH] * 7 + [HEAD] * 20
    assert ended(without, [BOTH] * 27) is None
    assert ended(without, without) is not None
