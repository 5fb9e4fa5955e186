"""The calls of ReduceLROnPlateau in a window, and the losses that a loop may give it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradledger_monitor.ingest.schema import Event, MicroBatch
from gradledger_monitor.model.numbers import number

EQUAL = 1e-5  # of the loss: what float32 and the division by K round


def in_order(
    calls: list[Event], micro_batches: list[MicroBatch]
) -> Iterator[tuple[Event | None, MicroBatch | None]]:
    """The calls and the micro-batches of a window, in their order."""
    waiting = list(calls)
    for before, batch in enumerate(micro_batches):
        while waiting and waiting[0].after <= before:
            yield waiting.pop(0), None
        yield None, batch
    for event in waiting:
        yield event, None


def losses_of(batch: MicroBatch, k: int) -> Iterator[float]:
    """The root of the backward without its scale, and what it was before a division by K."""
    loss, scale = number(batch.loss), number(batch.scale)
    if loss is None or not math.isfinite(loss) or (scale is not None and not scale > 0):
        return
    loss /= scale or 1.0
    yield loss
    yield loss * k
