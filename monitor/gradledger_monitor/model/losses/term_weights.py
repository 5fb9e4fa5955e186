"""The weights that a loss itself gives its tokens, as one term shows them."""

from __future__ import annotations

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.numbers import number


def has_own_weights(term: Term) -> bool:
    """Whether the loss gives its tokens other weights than its outermost reduction does."""
    return weights_vary(term) or has_inner_weight(term)


def has_inner_weight(term: Term) -> bool:
    """Whether a token weighs more or less than what the outermost reduction gives an element."""
    inner = inner_weight(term)
    return inner is not None and abs(inner - 1) > tolerances.INSIDE


def differ(values: list[float]) -> bool:
    """Whether weights of one loss differ by more than rounding."""
    return min(values) < max(values) * (1 - tolerances.INSIDE)


def inner_weight(term: Term) -> float | None:
    """The weight of a token relative to what the outermost reduction gives an element."""
    each, weight = number(term.element_weight), number(term.weight)
    return abs(weight / each) if each and weight is not None else None


def weights_vary(term: Term) -> bool:
    """Whether the loss itself gave the term's tokens different weights."""
    least, most, weight = number(term.weight_min), number(term.weight_max), number(term.weight)
    if least is None or most is None or weight is None:
        return False
    bound = most * (1 - tolerances.INSIDE)
    return least < bound or abs(weight) < bound
