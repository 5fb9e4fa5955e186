"""What a window multiplies its gradients by after backward: clipping by norm, and all else."""

from __future__ import annotations

import math

from gradledger_monitor.ingest.schema import Event, MicroBatch, StepRecord
from gradledger_monitor.model.numbers import number

CLIP_CALLS = ("clip_norm", "clip_value")


def clip_coefficient(event: Event) -> float:
    """The factor of ``clip_grad_norm_``: min(1, max_norm / (norm + 1e-6))."""
    norm, limit = number(event.norm), number(event.limit)
    if norm is None or limit is None or not norm >= 0:  # NaN, or not a norm
        return 1.0
    return min(1.0, limit / (norm + 1e-6))


def clipping_of_window(record: StepRecord) -> float:
    """The factor of all clips after the last backward; 1 if there was none."""
    last = len(record.micro_batches)
    clips = [e for e in record.events if e.op == "clip_norm" and e.after == last]
    return math.prod(clip_coefficient(event) or 1.0 for event in clips)


def shared_factor(record: StepRecord) -> float:
    """a_r: the measured factor after backward, with clipping and unscaling divided out."""
    factor = number(record.post_factor)
    if factor is None or not math.isfinite(factor):
        return 1.0
    return factor / clipping_of_window(record) / (number(record.grad_scale) or 1.0)


def unscale_factor(micro_batch: MicroBatch) -> float:
    """1 / loss scale: without a measured factor, it must be taken out of the weights."""
    scale = number(micro_batch.scale)
    return 1.0 / scale if scale else 1.0
