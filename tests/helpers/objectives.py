"""Runs with several objectives in one backward: a cross entropy and a router loss."""

from __future__ import annotations

from gradledger.records import StepRecord, Term
from helpers.batches import fair_step

COEFFICIENT = 0.01


def with_router(number: int, *, divided: bool) -> StepRecord:
    """A step of four equal micro-batches whose cross entropy is right; the router loss is the mean
    of four elements, with or without its division by the number of micro-batches."""
    record = fair_step(number, tokens=(10,) * 4)
    share = 4 if divided else 1
    for micro_batch in record.micro_batches:
        router = Term("MeanBackward0", "mean", 4, size=4, rows=4, positions=1)
        router.weight, router.coefficient = COEFFICIENT / share / 4, COEFFICIENT / share
        router.undivided = not divided
        micro_batch.terms.append(router)
    return record
