"""The weights that a loss itself gives its tokens, as one term shows them."""

from __future__ import annotations

import math

from msgspec.structs import replace

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
    if term.element_weight is None or term.weight is None:
        return None
    each = float(term.element_weight)
    return abs(float(term.weight) / each) if each else None


def weights_vary(term: Term) -> bool:
    """Whether the loss itself gave the term's tokens different weights."""
    least, most, weight = term.weight_min, term.weight_max, term.weight
    if least is None or most is None or weight is None:
        return False
    bound = float(most) * (1 - tolerances.INSIDE)
    return float(least) < bound or abs(float(weight)) < bound


def class_weights_of(term: Term) -> float | None:
    """The sum of the class weights of its tokens; None without any, or if a mask left out tokens.

    The hooks add up those of all targets that the loss does not ignore.
    """
    masked = term.reduction == "none" and term.tokens != term.valid
    return None if masked else number(term.class_weight)


def as_mean(term: Term) -> Term:
    """A sum that the loop divides by the class weights of these tokens, as PyTorch's mean does.

    Other terms are returned as they are.
    """
    total, weight = class_weights_of(term), number(term.weight)
    if term.reduction == "mean" or not total or not term.tokens or weight is None:
        return term
    divisors = [number(divisor) or 0.0 for divisor in term.divisors]
    others = [d for d in divisors if not math.isclose(d, total, rel_tol=tolerances.WEIGHT)]
    if len(others) == len(divisors) or weights_vary(term):
        return term
    return replace(
        term,
        reduction="mean",
        weight=weight * total / term.tokens,
        weight_min=None,
        weight_max=None,
        elements=None,
        element_weight=None,
        divisors=list(others),
    )


def outermost_constant(term: Term) -> float | None:
    """The constant of the outermost product in front of a loss, or of all; None if none."""
    return number(term.outer_coefficient) or number(term.coefficient)


def tokens_and_weight(term: Term, part: int) -> tuple[float, float] | None:
    """The tokens of a term and the weight of each; None if it has none, or they are not known.

    A penalty has no tokens: it is one value for each micro-batch, summed over the parameters.
    """
    if term.penalty:
        each, count = number(term.element_weight), term.elements
        if part > 1 or each is None or not count:
            return None
        return 1.0, each * count if term.reduction == "mean" else each
    multiplied_by_zero = term.elements and number(term.element_weight) == 0
    if not term.tokens or term.weight is None or multiplied_by_zero:
        return None  # the weight at what it shares with another loss is that of the other
    return float(term.tokens), float(term.weight)
