"""An optimizer that is created anew again and again, at the thresholds of the rule."""

from __future__ import annotations

import pytest

from gradledger.records import Replaced
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term


def finding_of(replaced: Replaced | None) -> Finding | None:
    """The finding at the first step of an optimizer."""
    first = facts(record([term(10, 0.1)], 1, replaced=replaced))
    findings = judged([first]).findings
    return next((f for f in findings if f.rule == "loop.optimizer_recreated"), None)


@pytest.mark.parametrize(
    ("steps", "horizon", "severity"),
    [
        (12, 1000.0, "warning"),
        (100, 1000.0, "warning"),
        (101, 1000.0, "info"),
        (12, 10.0, "info"),
        (12, None, "info"),
        (12, float("nan"), "info"),
    ],
)
def test_averages_that_are_lost_before_they_settle_are_a_warning(
    steps: int, horizon: float | None, severity: str
) -> None:
    finding = finding_of(Replaced(4, steps, in_a_row=4, horizon=horizon))
    assert finding is not None and finding.severity == severity


def test_the_numbers_are_those_of_the_record() -> None:
    finding = finding_of(Replaced(4, 1, in_a_row=4, horizon=10.0))
    assert finding is not None
    assert finding.title.endswith("replaces the previous one at every step")
    assert finding.summary == (
        "5 optimizers in a row stepped the same parameters with the same settings besides the "
        "learning rate, each in place of one that had made 1 step. The last 4 began with an empty "
        "state, and the averages of the gradients that the one before had were lost. By its "
        "factor, the longest reaches back 10 steps. If each of them is another phase, such as a "
        "task, this may be intended."
    )
    assert finding.evidence == {"optimizers": 5, "steps_of_each": 1, "horizon": 10}


@pytest.mark.parametrize("in_a_row", [0, 1, 3, 5])
def test_fewer_are_phases_and_the_same_is_reported_once(in_a_row: int) -> None:
    assert finding_of(Replaced(4, 12, in_a_row=in_a_row, horizon=1000.0)) is None
    assert finding_of(None) is None
