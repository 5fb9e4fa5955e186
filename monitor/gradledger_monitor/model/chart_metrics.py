"""Figures of one step that are charted and that no rule asks for (pure)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gradledger_monitor.model.numbers import number

if TYPE_CHECKING:
    from gradledger_monitor.model.step_facts import StepFacts

Figures = dict[str, float | None]


def beside(facts: StepFacts) -> Figures:
    """What is drawn beside the ledger: clipping, skips, the batch, ranks, gradient noise."""
    norm, limit, clipped = _clipping(facts)
    smallest, largest = _norms(facts)
    trace, signal = _noise(facts)
    return {
        "skipped": _skipped(facts),
        "samples": _float(facts.samples),
        "clip_norm": norm,
        "clip_limit": limit,
        "clipped": clipped,
        "smallest_norm": smallest,
        "largest_norm": largest,
        "noise_trace": trace,
        "noise_signal": signal,
    }


def _skipped(facts: StepFacts) -> float | None:
    """1 where the GradScaler found a gradient that is not finite; None without a GradScaler."""
    record = facts.first
    return float(record.skipped) if record.skipped or record.scaler is not None else None


def _clipping(facts: StepFacts) -> tuple[float | None, float | None, float | None]:
    """The norm before the last clipping by norm, its limit, and whether that shortened it."""
    clips = facts.own("clip_norm")
    if not clips:
        return None, None, None
    norm, limit = number(clips[-1].norm), number(clips[-1].limit)
    return norm, limit, None if norm is None or limit is None else float(norm > limit)


def _norms(facts: StepFacts) -> tuple[float | None, float | None]:
    """The smallest and the largest norm over the ranks."""
    if len(facts.records) == 1:
        return None, None
    norms = [norm for r in facts.records.values() if (norm := number(r.norm)) is not None]
    return (min(norms), max(norms)) if len(norms) > 1 else (None, None)


def _noise(facts: StepFacts) -> tuple[float | None, float | None]:
    """The two estimates whose ratio is the simple noise scale, in tokens.

    McCandlish et al. 2018 (arXiv:1812.06162), appendix A.1, with a micro-batch of one rank as the
    small batch and the step as the large one. Each is noisy and unbiased: average them, then
    divide.
    """
    squares = _noise_squares(facts) if len(facts.first.noise) == 2 else None
    if squares is None or facts.micro_batches < 2 or not facts.batch_tokens:
        return None, None
    small, big = squares
    pieces = facts.micro_batches * len(facts.records)
    trace = (small - big) * facts.batch_tokens / (pieces - 1)
    return trace, (pieces * big - small) / (pieces - 1)


def _noise_squares(facts: StepFacts) -> tuple[float, float] | None:
    """|G_small|^2 and |G_big|^2 without the loss scale; None where they are not comparable."""
    records = facts.records.values()
    if facts.unmeasured is not None or facts.factor_unmeasured is not None:
        return None
    if len(records) > 1 and (not facts.averaged or any(r.sharded for r in records)):
        return None  # the large batch must be the same everywhere
    if len({len(r.micro_batches) for r in records}) > 1:
        return None
    if any(len(r.noise) != 2 or "scale" in m.missing for r in records for m in r.micro_batches):
        return None
    scale = number(facts.first.micro_batches[-1].scale) or 1.0
    # divided twice: the square of a scale that makes no sense may be nothing, or beyond floats
    small = sum(float(r.noise[0]) for r in records) / len(records) / scale / scale
    big = float(facts.first.noise[1]) / scale / scale
    return (small, big) if math.isfinite(small + big) else None


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)
