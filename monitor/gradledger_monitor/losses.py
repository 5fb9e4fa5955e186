"""The loss that a loop accumulated, and the one that a single large batch would have reported."""

from __future__ import annotations

from gradledger_monitor.ledger import total
from gradledger_monitor.readings import spread
from gradledger_monitor.wire import MicroBatch, number


def sum_of_roots(micro_batches: list[MicroBatch]) -> float | None:
    """The sum of what backward started from, the loss scale taken out."""
    roots = []
    for micro_batch in micro_batches:
        if micro_batch.loss is None or "scale" in micro_batch.missing:
            return None
        loss, scale = float(micro_batch.loss), micro_batch.scale
        roots.append(loss if scale is None else loss / (float(scale) or 1.0))
    return total(roots) if roots else None


def sum_of_token_losses(micro_batch: MicroBatch) -> tuple[float, int] | None:
    """The sum of the token losses, and the tokens; None where there are several losses.

    With one loss term, root = weight * (sum of its token losses), so the sum is root / weight.
    """
    terms = micro_batch.terms
    if len(terms) != 1 or not terms[0].tokens:
        terms = [t for t in terms if t.tokens != 0]
    if not terms and micro_batch.terms:
        return 0.0, 0
    if not terms or micro_batch.loss is None:
        return None
    first, tokens = terms[0], 0
    for term in terms:
        if term.tokens is None or term.kind != first.kind or term.weight != first.weight:
            return None
        if term.weight_min is not None and spread(term):
            return None
        tokens += term.tokens
    weight = number(first.weight)
    return (float(micro_batch.loss) / weight, tokens) if weight else None
