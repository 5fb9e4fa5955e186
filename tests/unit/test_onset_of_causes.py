"""A finding that was over before the onset of a cause is not its symptom."""

from __future__ import annotations

import pytest

from gradledger_monitor.evaluation.result import inhibit
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.rules.docs import rules_by_id


def finding(rule: str, steps: range, **evidence: object) -> Finding:
    """A warning at these steps."""
    return Finding(rule, 0, "warning", steps[0], steps[-1], len(steps), "", "", "", evidence)


@pytest.mark.parametrize(("last", "inhibited"), [(20, False), (35, True), (60, True)])
def test_a_spike_that_was_over_before_the_rise_of_the_loss_is_no_symptom(
    last: int, inhibited: bool
) -> None:
    cause = finding("loss.diverging", range(51, 80), changed={"step": 40})
    spike = finding("norm.spike", range(20, last + 1))
    (result,) = [f for f in inhibit([cause, spike], rules_by_id()) if f.rule == "norm.spike"]
    assert (result.inhibited_by is not None) == inhibited


@pytest.mark.parametrize("rule", ["loss.nonfinite", "norm.nonfinite"])
@pytest.mark.parametrize(("first", "inhibited"), [(2, False), (8, True), (9, True)])
def test_drift_before_the_first_value_that_is_not_finite_is_no_symptom(
    rule: str, first: int, inhibited: bool
) -> None:
    cause = finding(rule, range(8, 20), changed={"step": 8})
    drift = finding("ddp.replica_drift", range(first, 20))
    (result,) = [f for f in inhibit([cause, drift], rules_by_id()) if f.rule == drift.rule]
    assert (result.inhibited_by is not None) == inhibited
