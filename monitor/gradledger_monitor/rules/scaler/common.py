"""What the scaler rules have in common: is a scaler in use, and what did it do in this window?"""

from __future__ import annotations

import math

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.rule import Window, not_applicable, not_measured


def unless_scaled(window: Window) -> Outcome | None:
    """The calm answer when no GradScaler is at work, or its calls were not seen."""
    record = window.facts.record
    if "scale" in record.missing:
        return not_measured(record.missing["scale"])
    if window.facts.scale is None:
        return not_applicable("no GradScaler")
    return None


def residual(facts: StepFacts) -> float | None:
    """What is left of the scale in the gradients that were applied: 1 when it was taken out."""
    factor, scale = number(facts.record.post_factor), facts.scale
    if factor is None or scale is None or not math.isfinite(factor):
        return None
    return facts.shared_factors[facts.lowest_rank] * scale
