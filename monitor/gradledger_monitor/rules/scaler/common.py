"""Shared by the scaler rules: whether a scaler is in use, and what is left of its scale."""

from __future__ import annotations

import math

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.rule import Precondition, Window, not_applicable, not_measured


def _no_scaler(window: Window) -> Outcome | None:
    """The outcome where no GradScaler is in use or its calls were not recorded."""
    record = window.facts.record
    if "scale" in record.missing:
        return not_measured(record.missing["scale"])
    if window.facts.scale is None:
        return not_applicable("no GradScaler")
    return None


SCALER_IN_USE = Precondition("a GradScaler is in use", _no_scaler)


def has_nan_loss(facts: StepFacts) -> bool:
    """Whether the loss of a micro-batch is NaN. An infinite one may come from its scale alone."""
    applied = (m for of_rank in facts.applied_by_rank.values() for _, m in of_rank)
    losses = (number(m.loss) for m in applied)
    return any(loss is not None and math.isnan(loss) for loss in losses)


def residual(facts: StepFacts) -> float | None:
    """The factor of the loss scale in the applied gradients: 1 after ``unscale_``, else ``scale``.

    None if it was not measured.
    """
    factor, scale = number(facts.record.post_factor), facts.scale
    if factor is None or scale is None or not math.isfinite(factor):
        return None
    return facts.shared_factors[facts.lowest_rank] * scale
