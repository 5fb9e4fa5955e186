"""Batches as the hooks send them, written with the hooks' own records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from gradledger.delivery.encoding import encode
from gradledger.records import (
    EndRecord,
    EvalRecord,
    MicroBatch,
    Record,
    RunRecord,
    StepRecord,
    Term,
)

Sync = Literal["none", "averaged"]


def term(tokens: int, weight: float) -> Term:
    """One mean cross-entropy over the tokens of two flattened sequences."""
    flat = Term("NllLossBackward0", "mean", tokens, size=tokens, rows=tokens, positions=1)
    flat.samples, flat.weight = 2, weight
    return flat


def step(
    number: int, optimizer: int = 0, *, tokens: tuple[int, ...] = (10, 30), sync: Sync = "none"
) -> StepRecord:
    """A step whose micro-batch means are averaged: each micro-batch weighs the same."""
    share = 1 / len(tokens)
    batches = [
        MicroBatch(loss=2.0 * share, terms=[term(count, share / count)], fresh=index == 0)
        for index, count in enumerate(tokens)
    ]
    time = 1_000.0 + number
    return StepRecord(
        optimizer, number, time, batches, norm=1.0, post_factor=1.0, lr=0.1, sync=sync
    )


def fair_step(number: int, *, tokens: tuple[int, ...] = (10, 30)) -> StepRecord:
    """A step in which every token weighs the same."""
    weight = 1 / sum(tokens)
    batches = [
        MicroBatch(loss=2.0 * n * weight, terms=[term(n, weight)], fresh=index == 0)
        for index, n in enumerate(tokens)
    ]
    return StepRecord(0, number, 1_000.0 + number, batches, norm=1.0, post_factor=1.0, lr=0.1)


def batch(run: str, records: Iterable[Record], **fields: Any) -> bytes:
    """A body: the record of a run with these fields, then the records."""
    fields = {"name": "a run", "optimizers": ["SGD"], "started": 1_000.0, **fields}
    return b"".join(map(encode, [RunRecord(run, **fields), *records]))


def eventually(seconds: float, happened: Callable[[], bool]) -> bool:
    """Whether something happens within a time; ``HANGS`` where the time says nothing.

    What is slow is looked at less often, because a look, such as a request, takes time from it.
    """
    begin = time.monotonic()
    while (waited := time.monotonic() - begin) < seconds:
        if happened():
            return True
        time.sleep(min(max(0.02, waited / 8), 0.25))
    return False


__all__ = ["EndRecord", "EvalRecord", "batch", "eventually", "fair_step", "step", "term"]
