"""The units in which a loss may be counted, and its ledger in each of them.

An author may have divided by tokens, class weights, rows, positions, or by the elements of the
outermost reduction. ``objectives`` chooses the reading that is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model.losses.term_weights import (
    class_weights_of,
    differ,
    has_inner_weight,
    inner_weight,
    weights_vary,
)
from gradledger_monitor.model.numbers import common_number, number
from gradledger_monitor.model.token_ledger import Ledger, WeightedTokens, build_ledger
from gradledger_monitor.model.tolerances import WEIGHT

COUNTED = ("tokens", "class_weight")  # units that a cross entropy counts itself


@dataclass
class WeightedTerm(WeightedTokens):
    """A loss term of one micro-batch of one rank: a line of the ledger, with at least one token."""

    loss_term: Term
    positive: bool  # sign of the term's own weight; ``weight`` is its absolute value
    part: int  # number of the term among those of this name in the micro-batch, from 1
    factor: float  # from the gradient at the loss node to the one that was applied
    own_factor: float  # the same without the loss scale: of the loop and the ranks

    def __init__(
        self,
        rank: int,
        micro_batch: int,
        term: str,
        tokens: float,
        weight: float,
        loss_term: Term,
        positive: bool,
        part: int,
        factor: float,
        own_factor: float,
    ) -> None:
        self.rank, self.micro_batch, self.term = rank, micro_batch, term
        self.tokens, self.weight = tokens, weight
        self.loss_term, self.positive, self.part = loss_term, positive, part
        self.factor, self.own_factor = factor, own_factor


@dataclass
class Reading:
    """One way to count an objective: the unit, and the ledger in this unit."""

    # "tokens", "class_weight", "rows", "weighted_rows": rows of a loss that weighs its elements,
    # "positions", "elements", "counted_elements",
    # "loss_weights": the weights that the loss gives its tokens, added up; or "micro_batches": of a
    # loss that is a function of a whole micro-batch
    unit: str
    ledger: Ledger
    terms: list[WeightedTerm]  # those behind the lines of the ledger, in the same order
    of_part: bool = False  # one of two terms on one head, which may be two tasks

    def __init__(
        self, unit: str, ledger: Ledger, terms: list[WeightedTerm], of_part: bool = False
    ) -> None:
        self.unit, self.ledger, self.terms, self.of_part = unit, ledger, terms, of_part

    def is_fair(self, tolerance: float, scale: float | None) -> bool:
        """Whether the token-mean contract holds: d = 0 and B = ``scale``, if B is known."""
        if scale is None:
            return self.is_even(tolerance)
        return self.is_even(tolerance) and abs(self.ledger.balance / scale - 1) <= tolerance

    def is_even(self, tolerance: float) -> bool:
        """Whether every token has the same weight: d = 0."""
        return self.ledger.misallocation <= tolerance

    @property
    def micro_batches(self) -> float:
        """Micro-batches of a rank, on average."""
        ranks = len({line.rank for line in self.ledger.lines})
        return len(self.ledger.weights_of_micro_batches()) / ranks

    def is_of_means(self, tolerance: float) -> bool:
        """Whether all micro-batches have equal total weights."""
        totals = self.ledger.weights_of_micro_batches()
        return max(totals) <= min(totals) * (1 + 2 * tolerance)


def is_fair_but_for_a_constant(reading: Reading, tolerance: float, scale: float | None) -> bool:
    """Whether the balance is the constant that multiplies the loss, which is no 1/K."""
    constant = abs(common_number([t.loss_term.coefficient for t in reading.terms]) or 0.0)
    divides = any(abs(constant * reading.micro_batches**n - 1) <= tolerance for n in (1, 2))
    if scale is None or not constant or divides or not reading.is_even(tolerance):
        return False
    return abs(reading.ledger.balance / scale / constant - 1) <= tolerance


def is_off_by_k(reading: Reading, tolerance: float, scale: float | None) -> bool:
    """Whether all micro-batches have equal total weights, K or 1/K times too large.

    A sum over classes or pixels may be so by the constant in front of it, too.
    """
    terms = [term.loss_term for term in reading.terms]
    if reading.unit not in COUNTED and any(term.coefficient is not None for term in terms):
        return False
    if is_of_labels(reading):
        return _is_off_in_labels(reading, tolerance, scale)
    if reading.unit == "positions" and not all(term.undivided for term in terms):
        return False
    k = reading.micro_batches
    if scale is None or k == 1 or not reading.is_of_means(tolerance):
        return False
    return any(abs(reading.ledger.balance / scale / n - 1) <= tolerance for n in (k, 1 / k))


def is_divided_by_its_count(reading: Reading) -> bool:
    """Whether the loop divides every term by what all ranks hold of this unit, or each rank.

    That shows the unit, whatever the ranks make of the quotient.
    """
    count, ranks = reading.ledger.tokens, len({line.rank for line in reading.ledger.lines})
    counts = {count, count / ranks}
    divisors = (map(number, term.loss_term.divisors) for term in reading.terms)
    return ranks > 1 and all(not counts.isdisjoint(of_term) for of_term in divisors)


def is_divided_by_k_and_counts(reading: Reading) -> bool:
    """Whether the loop divides every term by K and by its count in this unit: no K is missing.

    The 4 coordinates of a box, divided by the boxes alone, have a balance of 4 in elements. One
    number may contain both, and K may divide the gradients after backward. Not if a mean below,
    over the entries of each position, divides once more.
    """
    k = reading.micro_batches
    lines = zip(reading.terms, reading.ledger.lines, strict=True)
    return k != 1 and all(
        _divide(term, k, line.tokens) and not _is_divided_below(term) for term, line in lines
    )


def _is_divided_below(term: WeightedTerm) -> bool:
    """Whether each entry weighs less than the outermost reduction gives an element, by a mean.

    Advantages and other weights of elements are none.
    """
    outermost = abs(number(term.loss_term.element_weight) or 0.0) * term.factor
    return not weights_vary(term.loss_term) and term.weight < outermost * (1 - WEIGHT)


def _divide(term: WeightedTerm, k: float, count: float) -> bool:
    divisors = [number(divisor) or 0.0 for divisor in term.loss_term.divisors]
    factor = term.own_factor
    whole = math.prod(divisors) / factor if divisors and factor else 0.0
    if abs(whole / (k * count) - 1) <= WEIGHT:
        return True
    if k not in divisors:
        return False
    divisors.remove(k)
    return count in divisors


def _is_off_in_labels(reading: Reading, tolerance: float, scale: float | None) -> bool:
    """Whether the balance in labels is right, or off by K, by the ranks, or by both."""
    k, ranks = reading.micro_batches, len({line.rank for line in reading.ledger.lines})
    off = {n * r for n in (1.0, k, 1 / k) for r in (1.0, ranks, 1 / ranks)}
    return scale is not None and any(
        abs(reading.ledger.balance / scale / n - 1) <= tolerance for n in off
    )


def is_of_labels(reading: Reading) -> bool:
    """Whether it counts the labels of CTC losses."""
    return reading.unit == "positions" and _are_ctc([t.loss_term for t in reading.terms])


def _are_ctc(terms: list[Term]) -> bool:
    return bool(terms) and all(term.kind.startswith("CtcLoss") for term in terms)


def readings_of(terms: list[WeightedTerm], weighted_inside: bool) -> Iterator[Reading]:
    """The terms in each unit that their author may have meant, the most likely first.

    Two means on one head are parts of one loss, or two tasks of one model, so each is read alone,
    too. More than two are parts: chunks of one loss, or K forwards and one backward. So are sums.
    """
    units = _possible_units(terms, weighted_inside)
    groups = [terms]
    if max(t.part for t in terms) == 2 and any(t.loss_term.reduction == "mean" for t in terms):
        groups += [[t for t in terms if t.part == part] for part in (1, 2)]
    for group in groups:
        for unit in units:
            if unit == "elements" and not (weighted_inside or _proportional(group)):
                continue
            ledger = ledger_in(unit, group)
            if ledger is not None:
                yield Reading(unit, ledger, group, of_part=group is not terms)


def _possible_units(terms: list[WeightedTerm], weighted_inside: bool) -> tuple[str, ...]:
    """The units that the author may have meant, the most likely first.

    A class-weighted loss is a sum over class weights: PyTorch divides its mean by their sum. A CTC
    loss that divides each utterance by its length counts utterances: tokens would fit by chance.
    """
    losses = [t.loss_term for t in terms]
    if weighted_inside and _are_ctc(losses) and all(loss.elements for loss in losses):
        return "elements", "counted_elements"
    if weighted_inside:
        return "elements", "counted_elements", "weighted_rows", "tokens"
    # a vector of losses may be divided by anything: tokens are more likely
    if all(loss.class_weight and loss.reduction != "none" for loss in losses):
        return "class_weight", "tokens", "rows", "positions"
    return "tokens", "class_weight", "rows", "positions", "elements"


def of_micro_batches(terms: list[WeightedTerm]) -> list[Reading]:
    """The reading of functions of whole micro-batches, each of which counts once."""
    lines: dict[tuple[int, int], WeightedTokens] = {}
    functions = set()
    for t in terms:
        weight, number_of_it = number(t.loss_term.function_weight), t.loss_term.function
        if weight is None:
            return []
        key = (t.rank, t.micro_batch)
        line = lines.setdefault(key, WeightedTokens(*key, t.term, 1.0, 0.0))
        if (*key, number_of_it) not in functions:
            functions.add((*key, number_of_it))
            line.weight += abs(weight) * t.factor
    ledger = build_ledger(list(lines.values()))
    return [] if ledger is None else [Reading("micro_batches", ledger, terms)]


def by_loss_weights(terms: list[WeightedTerm]) -> Reading | None:
    """The reading of a loss that is divided by the sum of the weights that it gives its tokens.

    A CTC loss weighs them by lengths, which are counts.
    """
    if _are_ctc([t.loss_term for t in terms]):
        return None
    ledger = ledger_in("loss_weights", terms)
    return None if ledger is None else Reading("loss_weights", ledger, terms)


def by_sizes(terms: list[WeightedTerm]) -> Reading | None:
    """The reading in tokens that count by the sizes of their weights, which have both signs."""
    if all(t.loss_term.weight_size is None for t in terms):
        return None
    ledger = ledger_in("sizes", terms)
    return None if ledger is None else Reading("tokens", ledger, terms)


def ledger_in(unit: str, terms: list[WeightedTerm]) -> Ledger | None:
    """The ledger in this unit; None if a term has no such unit."""
    lines = terms if unit == "tokens" else _in_units(unit, terms)
    return build_ledger(lines) if lines else None


def _in_units(unit: str, terms: list[WeightedTerm]) -> list[WeightedTokens]:
    """The lines in units other than tokens; none if a term has no such unit."""
    lines = []
    for t in terms:
        counted = _count_and_weight(t, unit)
        if counted is None:
            return []
        lines.append(WeightedTokens(t.rank, t.micro_batch, t.term, *counted))
    return lines


def _proportional(terms: list[WeightedTerm]) -> bool:
    """Whether the author may have meant elements: they are a fixed multiple of the tokens.

    A mask makes fewer tokens than elements, by another share in each micro-batch; then only tokens
    are meant. A sum over classes makes more, always by the same factor. Where targets are ignored,
    elements that do not count are among them.
    """
    if any((t.loss_term.size or 0) > t.tokens for t in terms):
        return False
    ratios = {(t.loss_term.elements or 0) / t.tokens for t in terms}
    # a token is a row of several elements: only a mean is over all of them
    mean = all(t.loss_term.reduction == "mean" for t in terms)
    return len(ratios) == 1 and (mean or max(ratios) <= 1)


def _count_and_weight(t: WeightedTerm, unit: str) -> tuple[float, float] | None:
    """How many of a unit a term has, and the weight of each; None if there is no such unit.

    A class-weighted loss may divide by the sum of its class weights. A summed loss over elements
    (pixels, classes) may be meant per row or per position: its author chose the divisor.
    """
    term, weight = t.loss_term, t.weight
    if unit in ("elements", "counted_elements"):
        each = number(term.element_weight)
        count = term.elements if unit == "elements" else t.tokens
        return None if each is None or not count else (float(count), abs(each) * t.factor)
    if unit == "weighted_rows":
        return _rows_of_weighted(t)
    if unit in ("loss_weights", "sizes"):
        size = number(term.weight_size)  # weights of both signs are divided by their absolute sum
        total = weight if size is None else abs(size) * t.factor
        if unit == "sizes":
            return float(t.tokens), total
        each = abs(number(term.element_weight) or 0.0) * t.factor
        return (total * t.tokens / each, each) if each else None
    mean = term.reduction == "mean"
    if unit == "class_weight":
        units = class_weights_of(term)
    elif mean or term.kind.startswith("NllLoss"):
        units = None
    elif unit == "rows":  # a row of one element that has no weight is none of them
        masked = term.rows == term.size and t.tokens < (term.size or 0)
        units = None if masked else term.rows
    else:  # elements in one dimension have no positions
        units = None if (term.positions or 0) < (term.rows or 1) else counted_positions(t)
    if units is None or not 0 < units < math.inf:  # class weights may be any number
        return None
    if unit in ("rows", "positions") and _are_no_sums(units, t):
        return None
    # a mean has a fixed total weight: with more units, each has less
    return float(units), weight * t.tokens / units if mean and units != t.tokens else weight


def _rows_of_weighted(t: WeightedTerm) -> tuple[float, float] | None:
    """The rows of a sum over elements that the loss weighs, and what the sum gives each element.

    As the images of a diffusion model, weighted by their noise. Weights of both signs are those of
    steps, as advantages are: an episode is no row.
    """
    term, each = t.loss_term, number(t.loss_term.element_weight)
    sums = term.kind.startswith("SumBackward") and term.weight_size is None
    if each is None or not sums or not term.rows or term.elements != term.size:
        return None
    return float(term.rows), abs(each) * t.factor


def _are_no_sums(units: float, t: WeightedTerm) -> bool:
    """Whether the elements of the outermost reduction are these, and no sums of their entries.

    As rows that are means: a row weighs what its element does, and not what an entry does.
    """
    term, each = t.loss_term, number(t.loss_term.element_weight)
    if each is None or units != term.elements or units == term.size:
        return False
    return not math.isclose(t.weight, abs(each) * t.factor, rel_tol=WEIGHT)


def entries_of_a_position(t: WeightedTerm) -> int | None:
    """The entries of a position, such as the channels of a pixel, if a mask leaves out whole ones.

    None if the elements with a weight are no multiple of them.
    """
    size, positions = t.loss_term.size or 0, t.loss_term.positions or 0
    if not 0 < positions <= size or size % positions or t.tokens % (size // positions):
        return None
    return size // positions


def counted_positions(t: WeightedTerm) -> float | None:
    """The positions of a term: those with a weight, if a mask leaves out whole ones."""
    entries = entries_of_a_position(t)
    if entries is None or (t.loss_term.positions or 0) <= (t.loss_term.rows or 1):
        return t.loss_term.positions  # a row may be a sequence, of which tokens are masked
    return t.tokens / entries


def _weighs_rows(terms: list[WeightedTerm]) -> bool:
    """Whether the loss itself weighs the tokens of a micro-batch, as a mean of CTC always does."""
    losses = [t.loss_term for t in terms]
    return any(map(weights_vary, losses)) or _are_ctc([t for t in losses if has_inner_weight(t)])


def _weighs_micro_batches(terms: list[WeightedTerm]) -> bool:
    """Whether the loss itself gives the tokens of different micro-batches different weights.

    With one sequence in a micro-batch, its advantage is the weight of all its tokens. If the weight
    follows the number of tokens, or of all positions, it is a division by that.
    """
    weights = [inner_weight(t.loss_term) for t in terms]
    inner = [(weight, t) for weight, t in zip(weights, terms, strict=True) if weight]
    if len(inner) < len(terms) or not differ([weight for weight, _ in inner]):
        return False
    by_positions = [weight * (t.loss_term.size or 0) for weight, t in inner]
    return differ([weight * t.tokens for weight, t in inner]) and differ(by_positions)


def is_weighted_inside(terms: list[WeightedTerm]) -> bool:
    """Whether the loss itself gives the tokens of a window different weights."""
    return _weighs_rows(terms) or _weighs_micro_batches(terms)
