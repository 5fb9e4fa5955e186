"""What the scaler rules have in common: is a scaler in use, and what did it do in this window?"""

from __future__ import annotations

import math

from gradledger_monitor.facts import StepFacts, shared_factor
from gradledger_monitor.findings import Outcome
from gradledger_monitor.rules.base import Window, not_applicable, not_measured
from gradledger_monitor.wire import Event, MicroBatch, StepRecord, number


def unless_scaled(window: Window) -> Outcome | None:
    """The calm answer when no GradScaler is at work, or its calls were not seen."""
    record = window.facts.first
    if "scale" in record.missing:
        return not_measured(record.missing["scale"])
    if not any(m.scale is not None for m in record.micro_batches):
        return not_applicable("no GradScaler")
    return None


def own(record: StepRecord, *ops: str) -> list[Event]:
    """The loop's calls on this optimizer, in order."""
    return [event for event in record.events if event.op in ops and event.own]


def scale_of(micro_batches: list[MicroBatch]) -> float | None:
    """The loss scale of the last scaled backward."""
    scales = [number(m.scale) for m in micro_batches if m.scale is not None]
    return scales[-1] if scales else None


def residual(facts: StepFacts) -> float | None:
    """What is left of the scale in the gradients that were applied: 1 when it was taken out."""
    record = facts.first
    factor, scale = number(record.post_factor), scale_of(record.micro_batches)
    if factor is None or scale is None or not math.isfinite(factor):
        return None
    return shared_factor(record) * scale
