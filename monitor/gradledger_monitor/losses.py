"""The loss that a loop accumulated, and the one that a single large batch would have reported."""

from __future__ import annotations

from gradledger_monitor.ledger import total
from gradledger_monitor.readings import spread
from gradledger_monitor.wire import MicroBatch, number


def sum_of_roots(micro_batches: list[MicroBatch]) -> float | None:
    """The sum of what backward started from, the loss scale taken out."""
    roots = [_root(micro_batch) for micro_batch in micro_batches]
    known = [r for r in roots if r is not None]
    return total(known) if known and len(known) == len(roots) else None


def _root(micro_batch: MicroBatch) -> float | None:
    loss = number(micro_batch.loss)
    if loss is None or "scale" in micro_batch.missing:
        return None
    return loss / (number(micro_batch.scale) or 1.0)


def sum_of_token_losses(micro_batch: MicroBatch) -> tuple[float, int] | None:
    """The sum of the token losses, and the tokens; None where there are several losses.

    With one loss term, root = weight * (sum of its token losses), so the sum is root / weight.
    """
    terms = [t for t in micro_batch.terms if t.tokens != 0]
    if not terms and micro_batch.terms:
        return 0.0, 0
    loss = number(micro_batch.loss)
    weights = {number(t.weight) for t in terms}
    if loss is None or any(spread(t) or t.tokens is None for t in terms):
        return None
    if len({t.kind for t in terms}) != 1 or len(weights) != 1:
        return None
    weight = weights.pop()
    if not weight:
        return None
    return loss / weight, sum(t.tokens or 0 for t in terms)
