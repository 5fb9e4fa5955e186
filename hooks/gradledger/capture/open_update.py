"""An update that no optimizer of PyTorch made, as the training thread observed it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gradledger.capture.async_copy import Deferred
from gradledger.records import LeftOpen, StepRecord

NO_STEP = "the process ended before a step followed the backwards"


@dataclass
class OpenUpdate:
    """What an update did: samples of the parameters before and after it, and of the gradients."""

    parameters_before: Deferred | None
    parameters_after: Deferred | None
    gradient: Deferred | None  # as the update found it; None if that is not known
    untouched: bool  # the gradients themselves are still there
    precision: float  # of the parameters' dtype, relative


def left_open_record(step: Any) -> StepRecord:
    """The record of an ``OpenStep`` that is none: the process ended, and no step was taken."""
    values = [counted.micro_batch.loss for counted in step.micro_batches]
    losses = [None if value is None else value.value() for value in values]
    norms = [event.norm.value() for event in step.events if event.norm is not None]
    left_open = LeftOpen(
        backwards=len(losses),
        zeroed=sum(bool(counted.was_fresh()) for counted in step.micro_batches[1:]),
        nonfinite=sum(not math.isfinite(loss or 0.0) for loss in losses),
        scaled=sum(counted.micro_batch.scale is not None for counted in step.micro_batches),
        norms=len(norms),
        nonfinite_norms=sum(not math.isfinite(norm or 0.0) for norm in norms),
    )
    record = StepRecord(step.optimizer, step.step, step.time, left_open=left_open)
    record.skipped, record.code = True, step.code()
    record.missing = dict.fromkeys(("post_factor", *step.facts), NO_STEP)
    return record
