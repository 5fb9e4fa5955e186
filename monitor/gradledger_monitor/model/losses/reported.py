"""The loss that a loop accumulated, and the one that a single large batch would have reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import MicroBatch, Term
from gradledger_monitor.model.losses.term_weights import as_mean, weights_vary
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.token_ledger import total


def sum_of_roots(micro_batches: Iterable[tuple[int, MicroBatch]]) -> float | None:
    """The sum of the tensors that backward started from, each divided by its loss scale."""
    roots = []
    for _, micro_batch in micro_batches:
        loss, scale = micro_batch.loss, micro_batch.scale
        if loss is None or "scale" in micro_batch.missing:
            return None
        roots.append(float(loss) / (float(scale or 0) or 1.0))
    return total(roots) if roots else None


def mean_over_tokens(micro_batches: Iterable[tuple[int, MicroBatch]]) -> float | None:
    """The sum of the token losses over their number; None if one of them is not known.

    With one loss term, root = weight * (sum of its token losses), so that sum is root / |weight|.
    Means by class weights count by these, as one mean over the window would.
    """
    losses, count = 0.0, 0.0
    for _, micro_batch in micro_batches:
        loss, terms = micro_batch.loss, micro_batch.terms
        if micro_batch.elsewhere:  # these losses are a part of the root, too
            return None
        term = as_mean(terms[0]) if len(terms) == 1 else _joined(terms)
        if term is None or (tokens := term.tokens) is None:
            return None
        if tokens == 0:
            continue
        weight = term.weight
        if not weight or loss is None or (term.weight_min is not None and weights_vary(term)):
            return None
        # a loss may be minus a term, such as a log-probability
        counted = _counted(term, tokens)
        losses += float(loss) / abs(float(weight)) * counted / tokens
        count += counted
    return losses / count if count else None


def _counted(term: Term, tokens: int) -> float:
    """How much a micro-batch counts in one mean over the window."""
    by_class = number(term.class_weight) if term.reduction == "mean" else None
    return by_class or float(tokens)


def loss_of_large_batch(
    mean: float | None, objectives: Sequence[Objective], tolerance: float
) -> float | None:
    """The loss that one large batch would have reported: the mean over tokens, times the constant
    that the loop multiplies the loss by.

    A constant that makes the balance 1 is the division itself, or undoes an average over ranks.
    """
    constant = objectives[0].coefficient if len(objectives) == 1 else None
    if mean is None or not constant:
        return mean
    constant, balance = abs(constant), objectives[0].ledger.balance
    explains = abs(balance - constant) <= tolerance * constant
    is_weight = constant > 1 and abs(balance - 1) > tolerance
    return mean * constant if explains or is_weight else mean


def _joined(terms: list[Term]) -> Term | None:
    """The parts of one loss as one term; None if there are several losses, or none."""
    parts = [term for term in terms if term.tokens != 0]
    if not parts:
        return terms[0] if terms else None
    first, tokens = parts[0], 0
    for term in parts:
        if term.tokens is None or term.kind != first.kind or term.weight != first.weight:
            return None
        if weights_vary(term):
            return None
        tokens += term.tokens
    return replace(first, tokens=tokens)
