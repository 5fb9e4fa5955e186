"""Figures of one step that are charted and that no rule asks for (pure)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gradledger_monitor.wire import number

if TYPE_CHECKING:
    from gradledger_monitor.facts import StepFacts

Figures = dict[str, float | None]


def beside(facts: StepFacts) -> Figures:
    """What is drawn beside the ledger: clipping, skips, the batch, ranks, gradient noise."""
    return {
        "skipped": _skipped(facts),
        "samples": _float(facts.samples),
        **_clipping(facts),
        **_norms(facts),
        **_noise(facts),
    }


def _skipped(facts: StepFacts) -> float | None:
    """1 where the GradScaler found a gradient that is not finite; None without a GradScaler."""
    record = facts.first
    return float(record.skipped) if record.skipped or record.scaler is not None else None


def _clipping(facts: StepFacts) -> Figures:
    """The norm before the last clipping by norm, its limit, and whether that shortened it."""
    clips = [e for e in facts.first.events if e.op == "clip_norm" and e.own]
    norm, limit = (number(clips[-1].norm), number(clips[-1].limit)) if clips else (None, None)
    engaged = None if norm is None or limit is None else float(norm > limit)
    return {"clip_norm": norm, "clip_limit": limit, "clipped": engaged}


def _norms(facts: StepFacts) -> Figures:
    """The smallest and the largest norm over the ranks."""
    norms = [norm for r in facts.records.values() if (norm := number(r.norm)) is not None]
    several = len(norms) > 1
    low, high = (min(norms), max(norms)) if several else (None, None)
    return {"smallest_norm": low, "largest_norm": high}


def _noise(facts: StepFacts) -> Figures:
    """The two estimates whose ratio is the simple noise scale, in tokens.

    McCandlish et al. 2018 (arXiv:1812.06162), appendix A.1, with a micro-batch as the small batch
    and the window as the large one. Each is noisy and unbiased: average them, then divide. With
    several ranks the last backward mixes in other ranks' gradients, and none is given.
    """
    seen, tokens = facts.first.noise, facts.batch_tokens
    count = facts.micro_batches
    known = facts.unmeasured is None and facts.factor_unmeasured is None
    if not known or facts.run.world_size > 1 or len(seen) != 2 or count < 2 or not tokens:
        return {"noise_trace": None, "noise_signal": None}
    if any("scale" in m.missing for m in facts.first.micro_batches):
        return {"noise_trace": None, "noise_signal": None}
    scale = number(facts.first.micro_batches[-1].scale) or 1.0
    small, big = (float(square) / scale**2 for square in seen)
    if not math.isfinite(small + big):
        return {"noise_trace": None, "noise_signal": None}
    trace = (small - big) * tokens / (count - 1)
    return {"noise_trace": trace, "noise_signal": (count * big - small) / (count - 1)}


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)
