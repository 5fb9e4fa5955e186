"""The loss that a loop accumulated, and the one that a single large batch would have reported."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import MicroBatch, Term
from gradledger_monitor.model.objectives import spread
from gradledger_monitor.model.token_ledger import total


def sum_of_roots(kept: Iterable[tuple[int, MicroBatch]]) -> float | None:
    """The sum of what backward started from, the loss scale taken out."""
    roots = []
    for _, micro_batch in kept:
        loss, scale = micro_batch.loss, micro_batch.scale
        if loss is None or "scale" in micro_batch.missing:
            return None
        roots.append(float(loss) / (float(scale or 0) or 1.0))
    return total(roots) if roots else None


def mean_over_tokens(kept: Iterable[tuple[int, MicroBatch]]) -> float | None:
    """The sum of the token losses over their number; None where they are not known.

    With one loss term, root = weight * (sum of its token losses), so that sum is root / weight.
    """
    losses, counted = 0.0, 0
    for _, micro_batch in kept:
        loss, terms = micro_batch.loss, micro_batch.terms
        term = terms[0] if len(terms) == 1 else _as_one(terms)
        if term is None or (tokens := term.tokens) is None:
            return None
        if tokens == 0:
            continue
        weight = term.weight
        if not weight or loss is None or (term.weight_min is not None and spread(term)):
            return None
        losses, counted = losses + float(loss) / float(weight), counted + tokens
    return losses / counted if counted else None


def _as_one(terms: list[Term]) -> Term | None:
    """The parts of one loss as the whole; None where there are several losses, or none."""
    some = [term for term in terms if term.tokens != 0]
    if not some:
        return terms[0] if terms else None
    first, tokens = some[0], 0
    for term in some:
        if term.tokens is None or term.kind != first.kind or term.weight != first.weight:
            return None
        if spread(term):
            return None
        tokens += term.tokens
    return replace(first, tokens=tokens)
