"""The objectives of a window: its loss terms by their place in the loss, each with its own ledger.

A backward may start from several losses: a token cross entropy, a router loss, a penalty. Terms of
the same place in the loss expression are one objective, and each objective is judged for itself: a
term whose token count is constant states nothing about another.

An objective is read in each unit that its author may have divided by: tokens, class weights, rows,
positions, elements of the outermost reduction. If the contract holds in one of them, the objective
is right. Weights that a loss itself gives the tokens of a micro-batch (advantages, a mean per
sequence) are a choice of its author: such an objective is read in the elements that its outermost
reduction weighs equally.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model.losses.term_weights import (
    differ,
    has_inner_weight,
    has_own_weights,
    inner_weight,
    weights_vary,
)
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.token_ledger import Ledger, WeightedTokens, build_ledger

PENALTY = "penalty"  # kind of the terms that depend on parameters alone


@dataclass
class WeightedTerm(WeightedTokens):
    """A loss term of one micro-batch of one rank: a line of the ledger, with at least one token."""

    loss_term: Term
    positive: bool  # sign of the term's own weight; ``weight`` is its absolute value
    part: int  # number of the term among those of this name in the micro-batch, from 1
    factor: float  # from the gradient at the loss node to the one that was applied

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
    ) -> None:
        self.rank, self.micro_batch, self.term = rank, micro_batch, term
        self.tokens, self.weight = tokens, weight
        self.loss_term, self.positive, self.part = loss_term, positive, part
        self.factor = factor


@dataclass
class Reading:
    """One way to count an objective: the unit, and the ledger in this unit."""

    # "tokens", "class_weight", "rows", "positions", "elements", "counted_elements" or
    # "micro_batches": of a loss that is a function of a whole micro-batch
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


@dataclass
class Objective:
    """The terms of one place in the loss expression, or several losses together."""

    name: str  # kind and number of the loss, e.g. NllLossBackward0#0; TOGETHER for several
    terms: list[WeightedTerm]
    reading: Reading  # the one that is shown
    weighted_inside: bool  # the loss itself gives the tokens of a micro-batch different weights

    def __init__(
        self, name: str, terms: list[WeightedTerm], reading: Reading, weighted_inside: bool
    ) -> None:
        self.name, self.terms, self.reading = name, terms, reading
        self.weighted_inside = weighted_inside

    @property
    def ledger(self) -> Ledger:
        """The ledger in the unit that is shown."""
        return self.reading.ledger

    @property
    def kind(self) -> str:
        """Name of the loss node."""
        return self.terms[0].loss_term.kind

    @property
    def is_penalty(self) -> bool:
        """Whether it is a function of parameters alone, which has no tokens."""
        return self.terms[0].loss_term.penalty

    @property
    def is_undivided(self) -> bool:
        """Whether nothing divides the loss of any micro-batch, after its own mean."""
        return all(term.loss_term.undivided for term in self.terms)

    @property
    def is_undivided_sum(self) -> bool:
        """Whether it is a sum, and nothing divides it."""
        return self.is_undivided and all(t.loss_term.reduction == "sum" for t in self.terms)

    @property
    def elements_count(self) -> bool:
        """Whether all elements of its outermost reduction count: no mask may have left some out.

        An advantage of zero looks like a mask.
        """
        return all((t.loss_term.elements or math.inf) <= t.tokens for t in self.terms)

    def is_mean_of_counted(self, tolerance: float) -> bool:
        """Whether each micro-batch is divided by its number of tokens with a weight.

        The loss weighs the tokens, too. A micro-batch of one sequence may have its mean by design.
        """
        if self.reading.unit != "counted_elements" or self.elements_count:
            return False
        terms = [t.loss_term for t in self.terms]
        of_tokens = all(t.elements == t.size for t in terms)
        alone = all((t.rows if t.samples is None else t.samples) == 1 for t in terms)
        return of_tokens and not alone and self.reading.is_of_means(tolerance)

    @property
    def is_nonlinear(self) -> bool:
        """Whether a function of whole micro-batches (a root, a learned weight) sets its weights."""
        return any(t.loss_term.nonlinear for t in self.terms)

    @property
    def of_equal_micro_batches(self) -> bool:
        """Whether all micro-batches have equally many elements, as far as they are counted."""
        sizes = [t.loss_term.elements or t.loss_term.size or 0 for t in self.terms]
        return len(set(sizes)) == 1


TOGETHER = "together"


def objectives_of(
    terms: list[WeightedTerm], tolerance: float, scale: float | None
) -> list[Objective]:
    """The objectives of a window, the one with the most gradient weight first, penalties last.

    If nothing divides it, its balance is off, and its weights are even, an objective that is fair
    comes before it: a further loss that is not divided may be the heaviest. ``tolerance``:
    relative, of weights. ``scale``: the intended balance; None if the balance is not known.
    """
    objectives = []
    for name in _heaviest_first(terms):
        own = [t for t in terms if t.term == name]
        objective = _objective(name, own, tolerance, scale)
        if objective is not None:
            objectives.append(objective)
    first = objectives[0] if len(objectives) > 1 else None
    if first is not None and first.is_undivided and first.reading.is_even(tolerance):
        objectives.sort(key=lambda o: not _may_be_first(o, tolerance, scale))
    return objectives


def _may_be_first(objective: Objective, tolerance: float, scale: float | None) -> bool:
    """Whether it is fair, and not by chance, as a sum that nothing divides."""
    fair = objective.reading.is_fair(tolerance, scale)
    return fair and not (objective.is_penalty or objective.is_undivided_sum)


def fair_together(
    objectives: list[Objective], tolerance: float, scale: float | None
) -> Objective | None:
    """The losses that satisfy the contract together, as one objective; None if there are none.

    The mean of two heads weighs each with 1/2, and the tokens of both together with 1. The random
    shares of mixup are even only together, whatever the balance is.
    """
    for group in losses_together(objectives):
        terms = [term for objective in group for term in objective.terms]
        shared = _on_the_same_tokens(terms)
        uneven = not any(objective.reading.is_even(tolerance) for objective in group)
        for reading in (*_readings(terms, weighted_inside=False), *shared):
            fair = reading.is_fair(tolerance, scale)
            if not reading.of_part and (
                fair or (uneven and reading in shared and reading.is_even(tolerance))
            ):
                return Objective(TOGETHER, terms, reading, weighted_inside=False)
    return None


def _on_the_same_tokens(terms: list[WeightedTerm]) -> list[Reading]:
    """Losses on one head with equally many tokens: a token's weight is the sum of its weights.

    Mixup is such a sum: a random share of one label, and the rest of another.
    """
    lines: dict[tuple[int, int], WeightedTokens] = {}
    for t in terms:
        key = (t.rank, t.micro_batch)
        line = lines.setdefault(key, WeightedTokens(*key, TOGETHER, t.tokens, 0.0))
        if line.tokens != t.tokens or t.loss_term.head is None:
            return []
        line.weight += t.weight
    heads = {t.loss_term.head for t in terms}
    ledger = build_ledger(list(lines.values())) if len(heads) == 1 else None
    return [] if ledger is None else [Reading("tokens", ledger, terms)]


def losses_together(objectives: list[Objective]) -> Iterator[list[Objective]]:
    """Losses that may be meant as one: those of the first one's kind, then all."""
    losses = [o for o in objectives if not o.is_penalty and not o.weighted_inside]
    of_kind = [o for o in losses if o.kind == losses[0].kind]
    if len(of_kind) > 1:
        yield of_kind
    if len(losses) > max(len(of_kind), 1):
        yield losses


def signs_differ(terms: list[WeightedTerm]) -> bool:
    """Whether one loss has a positive weight in some micro-batch, and a negative one in another.

    A term of opposite sign beside the loss, as an entropy, is a part of one objective. If the loss
    multiplies its elements by weights, a sign is that of the data (an advantage).
    """
    signs: dict[str, dict[tuple[int, int], set[bool]]] = {}
    for t in terms:
        if not (t.loss_term.nonlinear or has_own_weights(t.loss_term)):
            of_batches = signs.setdefault(t.term, {})
            of_batches.setdefault((t.rank, t.micro_batch), set()).add(t.positive)
    return any({True} in each.values() and {False} in each.values() for each in signs.values())


def _heaviest_first(terms: list[WeightedTerm]) -> list[str]:
    """Names of the terms by gradient weight, sum of n * w, descending; penalties after them.

    An undivided mean is as heavy as its coefficient: added on K micro-batches it may weigh more
    than the loss beside which the author gave it little weight. So is a bare sum, as an entropy.
    """
    if not terms:
        return []
    first = terms[0].term
    if all(t.term == first for t in terms):
        return [first]
    totals: dict[str, float] = {}
    penalties = {t.term for t in terms if t.loss_term.penalty}
    ranks = len({t.rank for t in terms})
    micro_batches = Counter(name for name, _, _ in {(t.term, t.rank, t.micro_batch) for t in terms})
    for t in terms:
        undivided = t.loss_term.undivided
        count = (
            micro_batches[t.term] / ranks if undivided and t.loss_term.reduction == "mean" else 1.0
        )
        if undivided and t.loss_term.kind.startswith("SumBackward"):
            count = t.tokens * micro_batches[t.term] / ranks
        totals[t.term] = totals.get(t.term, 0.0) + t.tokens * t.weight / count
    return sorted(totals, key=lambda name: (name in penalties, -totals[name], name))


def _objective(
    name: str, terms: list[WeightedTerm], tolerance: float, scale: float | None
) -> Objective | None:
    """The objective, in the reading that is shown. The order of the tests is the theory:

    1. the first fair reading: if the contract holds in one unit, the objective is right;
    2. else the first in which the loss of each micro-batch is a mean, but for a factor of K or 1/K:
       then that is its unit; or a mean over the tokens with a weight, if the loss weighs them;
    3. else the first even one in tokens or class weights: only its divisor is wrong; of utterances
       and labels that with the nearest balance;
    4. else, and if the loss itself weighs its tokens, the first.
    """
    whole = _of_micro_batches(terms)
    inside = (_weighs_rows(terms) or _weighs_micro_batches(terms)) and not whole
    unfair = []
    for reading in whole or _readings(terms, inside):
        if reading.is_fair(tolerance, scale):
            return Objective(name, terms, reading, inside)
        unfair.append(reading)
    if not unfair:
        return None
    counted = [r for r in unfair if (r.unit in _COUNTED or _of_labels(r)) and not inside]
    even = [r for r in counted if r.is_even(tolerance)]
    if scale is not None and any(map(_of_labels, even)):
        even.sort(key=lambda r: max(r.ledger.balance, scale) / min(r.ledger.balance, scale))
    units = [r for r in unfair if not r.of_part and not (inside and r.unit == "tokens")]
    off_by_k = (r for r in units if _is_off_by_k(r, tolerance, scale))
    readings = (Objective(name, terms, r, inside) for r in units)
    means = [o for o in readings if o.is_mean_of_counted(tolerance)]
    if means:
        return means[0]
    return Objective(name, terms, next(chain(off_by_k, even), unfair[0]), inside)


def _is_off_by_k(reading: Reading, tolerance: float, scale: float | None) -> bool:
    """Whether all micro-batches have equal total weights, K or 1/K times too large.

    A sum over classes or pixels may be so by the constant in front of it, too.
    """
    terms = [term.loss_term for term in reading.terms]
    if reading.unit not in _COUNTED and any(term.coefficient is not None for term in terms):
        return False
    if _of_labels(reading):
        return _is_off_in_labels(reading, tolerance, scale)
    if reading.unit == "positions" and not all(term.undivided for term in terms):
        return False
    k = reading.micro_batches
    if scale is None or k == 1 or not reading.is_of_means(tolerance):
        return False
    return any(abs(reading.ledger.balance / scale / n - 1) <= tolerance for n in (k, 1 / k))


def _is_off_in_labels(reading: Reading, tolerance: float, scale: float | None) -> bool:
    """Whether the balance in labels is right, or off by K, by the ranks, or by both."""
    k, ranks = reading.micro_batches, len({line.rank for line in reading.ledger.lines})
    off = {n * r for n in (1.0, k, 1 / k) for r in (1.0, ranks, 1 / ranks)}
    return scale is not None and any(
        abs(reading.ledger.balance / scale / n - 1) <= tolerance for n in off
    )


def _of_labels(reading: Reading) -> bool:
    return reading.unit == "positions" and _are_ctc([t.loss_term for t in reading.terms])


def _are_ctc(terms: list[Term]) -> bool:
    return bool(terms) and all(term.kind.startswith("CtcLoss") for term in terms)


_COUNTED = ("tokens", "class_weight")


def _readings(terms: list[WeightedTerm], weighted_inside: bool) -> Iterator[Reading]:
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
            ledger = _ledger(unit, group)
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
        return "elements", "counted_elements", "tokens"
    if all(t.loss_term.class_weight for t in terms):
        return "class_weight", "tokens", "rows", "positions"
    return "tokens", "class_weight", "rows", "positions", "elements"


def _of_micro_batches(terms: list[WeightedTerm]) -> list[Reading]:
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


def _ledger(unit: str, terms: list[WeightedTerm]) -> Ledger | None:
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
    are meant. A sum over classes makes more, always by the same factor.
    """
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
    mean = term.reduction == "mean"
    if unit == "class_weight":
        units = number(term.class_weight)
    elif mean or term.kind.startswith("NllLoss"):
        units = None
    elif unit == "rows":
        units = term.rows
    else:  # elements in one dimension have no positions
        units = None if (term.positions or 0) < (term.rows or 1) else term.positions
    if units is None or not 0 < units < math.inf:  # class weights may be any number
        return None
    # a mean has a fixed total weight: with more units, each has less
    return float(units), weight * t.tokens / units if mean and units != t.tokens else weight


def _weighs_rows(terms: list[WeightedTerm]) -> bool:
    """Whether the loss itself weighs the tokens of a micro-batch, as a mean of CTC always does."""
    losses = [t.loss_term for t in terms]
    return any(map(weights_vary, losses)) or _are_ctc([t for t in losses if has_inner_weight(t)])


def _weighs_micro_batches(terms: list[WeightedTerm]) -> bool:
    """Whether the loss itself gives the tokens of different micro-batches different weights.

    With one sequence in a micro-batch, its advantage is the weight of all its tokens. If the weight
    follows the number of tokens, it is a mean instead.
    """
    weights = [inner_weight(t.loss_term) for t in terms]
    inner = [weight for weight in weights if weight]
    shares = [weight * t.tokens for weight, t in zip(weights, terms, strict=True) if weight]
    return len(inner) == len(terms) and differ(inner) and differ(shares)
