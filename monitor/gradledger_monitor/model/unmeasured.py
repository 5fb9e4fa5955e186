"""Why a window has no ledger: the order of tests decides which reason is reported."""

from __future__ import annotations

import math

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.clipping import CLIP_CALLS
from gradledger_monitor.model.losses.names import IndexedMicroBatches
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.manual_all_reduce import UNSEEN, ManualAllReduce

SKIPPED = "the GradScaler skipped this step"
NO_STEP = "the process ended before a step followed the backwards"
NO_BACKWARD = "no backward added to the gradients of this window"
LEFT_OR_ASSIGNED = (
    "no backward of this window added to the gradients that the optimizer steps on: they may be "
    "left from before, or assigned by the loop, as to copies or shards of the model's parameters, "
    "or from torch.func, which is not followed (torch.autograd.grad on the parameters is)"
)
# no backward is missing
OF_CHANGES = "the optimizer steps on changes that other steps made of the models, not on a loss"
WITHOUT_BACKWARD = (NO_BACKWARD, LEFT_OR_ASSIGNED)


def why_unmeasured(
    record: StepRecord,
    applied: IndexedMicroBatches,
    all_reduce: ManualAllReduce | None,
    of_one_batch: bool = False,
) -> str | None:
    """Why the weights of this rank's tokens are not known; None if they are.

    ``of_one_batch``: they are known but for one factor, although the ranks' combination is not.
    """
    if record.left_open is not None:
        return NO_STEP
    if record.skipped:
        return SKIPPED
    if not record.micro_batches:  # unless its zeros are known to be a part of the sum
        if all_reduce is not None and all_reduce.is_known:
            return None
        return without_backward(record)
    unknown = record.post_factor is None and record.step_size is None
    if len(applied) < len(record.micro_batches) and unknown:
        return "gradients were moved, or discarded, between micro-batches"
    if "sync" in record.missing:
        return record.missing["sync"]
    if _may_mix_shards(record):
        return "the loop communicates after backward, and changes the gradients of some shards"
    if len({m.scale is None for _, m in applied}) > 1:
        return "some backwards of this window were scaled, and others not"
    if _has_two_scales(applied):
        return "the loss scale changed between backwards of this window"
    if _unscaled_between(record, applied):
        return "GradScaler.unscale_ ran between backwards of this window: those after it are scaled"
    if all_reduce is not None and not (all_reduce.is_known or of_one_batch):
        return all_reduce.reason
    if record.sync == "unknown" and not of_one_batch:
        return UNSEEN
    for _, micro_batch in applied:
        for fact in ("rescaled", "gathered", "reach"):
            if fact in micro_batch.missing:
                return micro_batch.missing[fact]
        terms = [term for term in micro_batch.terms if not term.penalty]
        if not terms:
            return micro_batch.missing.get("terms", "no loss term was seen")
        for term in terms:
            tokens, weight = term.tokens, term.weight
            if tokens is None or weight is None:
                if tokens != 0:
                    reasons = term.missing.values()
                    return next(iter(reasons), f"the weight of {term.kind} was not seen")
            elif not math.isfinite(float(weight)):
                return "the gradient at the loss is not finite"
    return None


def _has_two_scales(applied: IndexedMicroBatches) -> bool:
    """Whether one GradScaler multiplied losses of the window by different scales."""
    scales = {(m.scaler, float(m.scale)) for _, m in applied if m.scale is not None}
    return len(scales) > len({scaler for scaler, _ in scales})


def _unscaled_between(record: StepRecord, applied: IndexedMicroBatches) -> bool:
    """Whether some gradients of the sum are multiplied by the loss scale, and some are not."""
    first, total = applied[0][0] if applied else 0, len(record.micro_batches)
    return any(e.op == "unscale" and e.own and first < e.after < total for e in record.events)


def without_backward(record: StepRecord) -> str:
    """Where the gradients of a window may come from that has no backward."""
    of_others = record.sync == "averaged"  # the gradients of ranks that had a backward
    none = record.empty or not number(record.norm)
    return NO_BACKWARD if of_others or none else LEFT_OR_ASSIGNED


def _may_mix_shards(record: StepRecord) -> bool:
    """Whether the loop may have combined gradients that the wrapper had reduced to shards.

    Shards of different ranks have nothing in common, so this shows only as a change that is not
    one factor. Clipping computes a norm over the ranks, and may be of some parameters only.
    """
    communicates = record.sharded and record.sync == "averaged" and record.collectives_after
    clips = any(event.op in CLIP_CALLS for event in record.events)
    return bool(communicates and record.changed and record.post_factor is None and not clips)
