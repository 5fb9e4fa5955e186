"""The metrics of a step that charts show."""

from __future__ import annotations

import math

import pytest

from gradledger.records import Event
from gradledger_monitor.model.chart_metrics import chart_metrics
from helpers.facts import facts, record, term


@pytest.mark.parametrize(
    ("limit", "norm", "shown"),
    [
        (1.0, 4.0, (4.0, 1.0, 1.0)),
        (8.0, 4.0, (4.0, 8.0, 0.0)),
        (math.inf, 4.0, (None, None, None)),  # the call only measures
        (1.0, None, (None, 1.0, None)),
    ],
)
def test_clipping_is_charted_with_its_limit(
    limit: float, norm: float | None, shown: tuple[float | None, ...]
) -> None:
    clip = Event("clip_norm", after=1, limit=limit, norm=norm)
    metrics = chart_metrics(facts(record([term(10, 0.1)], events=[clip])))
    assert (metrics["clip_norm"], metrics["clip_limit"], metrics["clipped"]) == shown
