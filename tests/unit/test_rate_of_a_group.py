"""schedule.zero_lr, for one of several parameter groups."""

from __future__ import annotations

import pytest

from gradledger.records import Layers
from helpers.facts import facts, judged, record, term


@pytest.mark.parametrize(
    ("steps", "rates", "update", "found"),
    [
        (49, [0.0, 0.1], 0.0, []),
        (50, [0.0, 0.1], 0.0, ["info"]),
        (50, [0.0, 0.1], 0.01, []),  # other parameters than those of the group
        (50, [0.2, 0.1], 0.0, []),
    ],
)
def test_a_group_whose_rate_is_zero_at_all_steps_is_information(
    steps: int, rates: list[float], update: float, found: list[str]
) -> None:
    sent = [record([term(40, 1 / 80)] * 2, n, lr=rates[0], lrs=rates) for n in range(1, steps + 1)]
    sent[-1].layers = Layers(
        names=["encoder.weight", "head.weight"],
        sizes=[8, 8],
        gradient=[1.0, 1.0],
        parameter=[1.0, 1.0],
        update=[update, 0.01],
    )
    findings = [f for f in judged(list(map(facts, sent))).findings if f.rule == "schedule.zero_lr"]
    assert [f.severity for f in findings] == found
    for finding in findings:
        assert finding.title == "The learning rate of parameter group 1 of 2 is 0"
        assert "encoder.weight had a gradient, and did not move" in finding.summary


def test_a_group_that_had_another_rate_is_silent() -> None:
    rates = [[0.0, 0.1]] * 30 + [[0.01, 0.1]] + [[0.0, 0.1]] * 80
    sent = [record([term(40, 1 / 80)] * 2, n, lr=r[0], lrs=r) for n, r in enumerate(rates, 1)]
    sent[-1].layers = Layers(names=["w"], sizes=[8], gradient=[1.0], parameter=[1.0], update=[0.0])
    assert not [f for f in judged(list(map(facts, sent))).findings if f.rule == "schedule.zero_lr"]
