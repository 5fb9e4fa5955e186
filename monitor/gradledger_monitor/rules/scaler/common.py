"""Shared by the scaler rules: whether a scaler is in use, and what is left of its scale."""

from __future__ import annotations

import math

from gradledger_monitor.ingest.schema import Event
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.losses.term_weights import outermost_constant
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT
from gradledger_monitor.rules.rule import Precondition, Window, not_applicable, not_measured

LEAST_SCALE = 16.0  # loss scales are 128 and more; a smaller constant may be a weight


def _no_scaler(window: Window) -> Outcome | None:
    """The outcome where no GradScaler is in use or its calls were not recorded."""
    record = window.facts.record
    if "scale" in record.missing:
        return not_measured(record.missing["scale"])
    if window.facts.scale is None:
        return not_applicable("no GradScaler")
    return None


def _nothing_scales_or_steps(window: Window) -> Outcome | None:
    """The same, where no GradScaler steps the optimizer either."""
    outcome, steps = _no_scaler(window), window.facts.record.scaler is not None
    return None if steps and outcome and outcome.status == "not_applicable" else outcome


SCALER_IN_USE = Precondition("a GradScaler is in use", _no_scaler)
SCALER_STEPS_OR_SCALES = Precondition("a GradScaler scales, or steps", _nothing_scales_or_steps)


def static_scale(facts: StepFacts) -> float | None:
    """The constant loss scale of a loop without a GradScaler, which it divides out after backward.

    It multiplies every loss, nearest to the root, and is no count of the window: micro-batches,
    ranks, tokens, samples. None if there is none, or if a change of single values hides it.
    """
    if facts.scale is not None or facts.factor_unmeasured or facts.all_reduce is not None:
        return None
    losses = [t.loss_term for t in facts.terms]
    factors = {outermost_constant(t) for t in losses}
    factor = factors.pop() if len(factors) == 1 else None
    if factor is None or factor < LEAST_SCALE or factor in _counts(facts):
        return None
    rest = facts.shared_factors[facts.lowest_rank] * factor
    return factor if abs(rest - 1) <= WEIGHT else None


def _counts(facts: StepFacts) -> set[float]:
    """What a loop may multiply a loss by, and divide its gradients by, to count."""
    k, ranks = facts.micro_batches, facts.run.world_size
    of_terms = [
        (t.tokens, t.loss_term.size, t.loss_term.rows, t.loss_term.samples) for t in facts.terms
    ]
    counts = {float(count) for each in of_terms for count in each if count}
    whole = [facts.samples, facts.batch_tokens, facts.record.batch_size]
    return counts | {float(count) for count in (k, ranks, k * ranks, *whole) if count}


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


def bounded(clip: Event) -> str:
    """What a clip bounds, as the subject of a sentence."""
    return "the norm is" if clip.op == "clip_norm" else "each gradient value is"
