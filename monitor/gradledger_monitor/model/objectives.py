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

from gradledger_monitor.model.losses.term_weights import has_own_weights
from gradledger_monitor.model.numbers import common_number, number
from gradledger_monitor.model.readings import (
    COUNTED,
    Reading,
    WeightedTerm,
    by_loss_weights,
    by_sizes,
    is_divided_by_its_count,
    is_divided_by_k_and_counts,
    is_fair_but_for_a_constant,
    is_of_labels,
    is_off_by_k,
    is_weighted_inside,
    ledger_in,
    of_micro_batches,
    readings_of,
)
from gradledger_monitor.model.token_ledger import Ledger, WeightedTokens, build_ledger

PENALTY = "penalty"  # kind of the terms that depend on parameters alone
BARE = ("MeanBackward", "SumBackward", "NansumBackward")  # of elements whose meaning is unknown


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
    def coefficient(self) -> float | None:
        """The constant that the loss of every micro-batch is multiplied by, if there is one."""
        return common_number([t.loss_term.coefficient for t in self.terms])

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

    def is_of_weighted_means(self, tolerance: float) -> bool:
        """Whether micro-batches of equal counts have equal weight, and unequal sums of weights.

        A mean over the whole window would divide all of them by one sum. The weights are those of
        classes, or others that the loss gives its tokens.
        """
        if self.reading.unit != "tokens":
            return False
        if self.weighted_inside:
            return (
                self.reading.is_even(tolerance)
                and _by_own_weights(self.terms, tolerance) is not None
            )
        if any(t.loss_term.reduction != "mean" for t in self.terms):
            return False
        by_class = ledger_in("class_weight", self.terms)
        return by_class is not None and by_class.misallocation > tolerance

    @property
    def is_mean_of_entries(self) -> bool:
        """Whether it is a divergence whose mean is over rows and classes.

        ``kl_div(reduction="mean")`` is so. The divergence of PyTorch's ``batchmean`` is as many
        times as large as there are classes.
        """
        means = all(t.loss_term.reduction == "mean" for t in self.terms)
        by_entry = self.reading.unit == "elements" or self.kind == "KlDivBackward0"
        return means and by_entry and self.kind.startswith("KlDiv")

    def has_normalised_weights(self, tolerance: float) -> bool:
        """Whether the weights that the loss gives its elements have one sum in all micro-batches.

        Their author divided them by their sum, as a softmax or self-normalised importance weights.
        """
        reading = by_loss_weights(self.terms) if self.weighted_inside else None
        sums = [line.tokens for line in reading.ledger.lines] if reading is not None else []
        return len(sums) > 1 and max(sums) <= min(sums) * (1 + tolerance)

    @property
    def is_mean_of_an_utterance(self) -> bool:
        """Whether each micro-batch has one utterance, whose loss is divided by its labels.

        So does the mean of a CTC loss, whose one element then weighs 1, as in a sum.
        """
        single = all(t.loss_term.elements == 1 for t in self.terms)
        return single and self.weighted_inside and self.kind.startswith("CtcLoss")

    @property
    def is_divided_inside_alone(self) -> bool:
        """Whether the losses of utterances are divided by their labels, and no number divides them.

        Then a weight below 1 is that of a mean over the utterances of a micro-batch.
        """
        divisors = [number(d) for term in self.terms for d in term.loss_term.divisors]
        return not any(divisors) and self.weighted_inside and self.kind.startswith("CtcLoss")

    def has_one_term_in_each_of(self, micro_batches: int) -> bool:
        """Whether it has one term in each micro-batch, if all ranks together have this number."""
        pairs = {(term.rank, term.micro_batch) for term in self.terms}
        return len(self.terms) == len(pairs) == micro_batches

    def is_mean_of_counted(self, tolerance: float) -> bool:
        """Whether each micro-batch is divided by its number of tokens with a weight.

        The loss weighs the tokens, too. A micro-batch of one sequence may have its mean by design.
        """
        terms = [t.loss_term for t in self.terms]
        alone = all((t.rows if t.samples is None else t.samples) == 1 for t in terms)
        return (
            all(t.rows is not None for t in terms)
            and not alone
            and self._is_divided_by_counted(tolerance)
        )

    def may_be_mean_of_counted(self, tolerance: float) -> bool:
        """The same of a pick, of which it is not known how many sequences it has."""
        rows = [t.loss_term.rows for t in self.terms]
        return None in rows and self._is_divided_by_counted(tolerance)

    def _is_divided_by_counted(self, tolerance: float) -> bool:
        if self.reading.unit != "counted_elements" or self.elements_count:
            return False
        of_tokens = all(t.loss_term.elements == t.loss_term.size for t in self.terms)
        return of_tokens and self.reading.is_of_means(tolerance)

    @property
    def is_nonlinear(self) -> bool:
        """Whether a function of whole micro-batches (a root, a learned weight) sets its weights."""
        return any(t.loss_term.nonlinear for t in self.terms)

    @property
    def is_unmatched(self) -> bool:
        """Whether micro-batches have some of several losses, and which of them is not known."""
        parts = [t for t in self.terms if t.part > 1 and t.loss_term.head is None]
        return bool(parts) and not self.is_penalty

    @property
    def compares_examples(self) -> bool:
        """Whether its elements compare the examples of a micro-batch, as triplets do."""
        return any(t.loss_term.compares for t in self.terms)

    @property
    def of_equal_micro_batches(self) -> bool:
        """Whether all micro-batches have equally many elements, as far as they are counted."""
        sizes = [t.loss_term.elements or t.loss_term.size or 0 for t in self.terms]
        return len(set(sizes)) == 1


TOGETHER = "together"


def read_in(objective: Objective, unit: str) -> Objective:
    """The objective in this unit, whatever the contract is in it; the same one if it has none."""
    ledger = ledger_in(unit, objective.terms)
    if ledger is None:
        return objective
    reading = Reading(unit, ledger, objective.terms)
    return Objective(objective.name, objective.terms, reading, objective.weighted_inside)


def objectives_of(
    terms: list[WeightedTerm], tolerance: float, scale: float | None
) -> list[Objective]:
    """The objectives of a window, the one with the most gradient weight first, penalties last.

    If nothing divides it, its balance is off, and its weights are even, an objective that is fair
    comes before it: a further loss that is not divided may be the heaviest. If a constant is in
    front of it, as of a gradient penalty, but does not explain its balance, so does a mean that
    nothing multiplies or divides, and that weighs K: that shows more. ``tolerance``: relative, of
    weights. ``scale``: the intended balance; None if the balance is not known.
    """
    objectives = []
    for name in _heaviest_first(terms):
        own = _that_count([t for t in terms if t.term == name])
        objective = _objective(name, own, tolerance, scale)
        if objective is not None:
            objectives.append(objective)
    first = objectives[0] if len(objectives) > 1 else None
    if first is not None and first.reading.is_even(tolerance):
        if first.is_undivided:
            objectives.sort(key=lambda o: not _may_be_first(o, tolerance, scale))
        if _is_off_by_more_than_its_constant(objectives[0], tolerance, scale):
            objectives.sort(key=lambda o: not _is_plain_mean_times_k(o, tolerance, scale))
    return objectives


def _that_count(terms: list[WeightedTerm]) -> list[WeightedTerm]:
    """Without those of a rank whose losses the script all multiplies by zero: it has no data.

    Unless it does so on all ranks. A loss times zero in some micro-batches may be an error.
    """
    ranks = {t.rank for t in terms if t.weight or t.loss_term.coefficient != 0}
    return [t for t in terms if t.rank in ranks] or terms


def _may_be_first(objective: Objective, tolerance: float, scale: float | None) -> bool:
    """Whether it is fair, and not by chance, as a sum that nothing divides.

    Or as a mean with a weight of 1/K, which may be the division.
    """
    k = objective.reading.micro_batches
    weight = k * abs(objective.coefficient or 0.0)
    by_weight = k > 1 and objective.is_undivided and abs(weight - 1) <= tolerance
    fair = objective.reading.is_fair(tolerance, scale)
    by_chance = objective.is_undivided_sum or by_weight
    return fair and not (objective.is_penalty or by_chance)


def _is_off_by_more_than_its_constant(
    objective: Objective, tolerance: float, scale: float | None
) -> bool:
    """Whether a constant in front of a mean is not all that makes its balance wrong."""
    constants = [number(t.loss_term.coefficient) for t in objective.terms]
    of_means = objective.reading.is_of_means(tolerance) and not objective.is_undivided_sum
    if scale is None or not of_means or None in constants:
        return False
    balance = objective.ledger.balance / scale
    return all(abs(balance - abs(c or 0.0)) > tolerance * balance for c in constants)


def _is_plain_mean_times_k(objective: Objective, tolerance: float, scale: float | None) -> bool:
    """Whether it is a mean that nothing multiplies or divides, and so weighs K."""
    terms = [t.loss_term for t in objective.terms]
    plain = all(t.undivided and t.reduction == "mean" and t.coefficient is None for t in terms)
    penalty = objective.is_penalty
    return plain and not penalty and is_off_by_k(objective.reading, tolerance, scale)


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
        for reading in (*readings_of(terms, weighted_inside=False), *shared):
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
    multiplies its elements by weights, a sign is that of the data (an advantage). The loss times
    zero of a rank without data has no sign.
    """
    if len({t.positive for t in terms}) < 2:
        return False
    signs: dict[str, dict[tuple[int, int], set[bool]]] = {}
    for t in _that_count(terms):
        if not (t.loss_term.nonlinear or has_own_weights(t.loss_term)):
            of_batches = signs.setdefault(t.term, {})
            of_batches.setdefault((t.rank, t.micro_batch), set()).add(t.positive)
    return any({True} in each.values() and {False} in each.values() for each in signs.values())


def _heaviest_first(terms: list[WeightedTerm]) -> list[str]:
    """Names of the terms by gradient weight, sum of n * w, descending; penalties after them.

    An undivided mean is as heavy as its coefficient: added on K micro-batches it may weigh more
    than the loss beside which the author gave it little weight. So is a bare sum, as an entropy.
    Entries of a bare reduction that are added up below the outermost one, as those of the classes
    of an entropy, make it no heavier: the weight is that of the elements of the outermost one.
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
        weight, each = t.tokens * t.weight, number(t.loss_term.element_weight)
        if each and t.loss_term.elements and t.loss_term.kind.startswith(BARE):
            weight = min(weight, t.loss_term.elements * abs(each) * t.factor)
        totals[t.term] = totals.get(t.term, 0.0) + weight / count
    return sorted(totals, key=lambda name: (name in penalties, -totals[name], name))


def _objective(
    name: str, terms: list[WeightedTerm], tolerance: float, scale: float | None
) -> Objective | None:
    """The objective, in the reading that is shown. The order of the tests is the theory:

    1. the first fair reading: if the contract holds in one unit, the objective is right; of a loss
       that weighs its tokens, also if it is divided by the sum of these weights;
    2. else, of a loss that weighs its tokens, and divides each micro-batch by the sum of its
       weights: the tokens if these are even, or the sums, if the balance is 1, or off by K;
    3. else the first by whose count, and K, the loop divides each micro-batch; or that is fair but
       for a constant in front of the loss, as the square of the temperature of a distillation; or
       in which the loss of each micro-batch is a mean, but for K or 1/K, an even one before others;
       or whose count of all ranks divides it; or a mean over the tokens with a weight, if the loss
       weighs them;
    4. else the first even one in tokens or class weights: only its divisor is wrong; of utterances
       and labels that with the nearest balance;
    5. else, and if the loss itself weighs its tokens, the first.
    """
    whole = of_micro_batches(terms)
    inside = is_weighted_inside(terms) and not whole
    unfair = []
    for reading in whole or readings_of(terms, inside):
        if reading.is_fair(tolerance, scale):
            return Objective(name, terms, reading, inside)
        unfair.append(reading)
    if not unfair:
        return None
    of_weights = by_loss_weights(terms) if inside else None
    if of_weights is not None and of_weights.is_fair(tolerance, scale):
        return Objective(name, terms, of_weights, inside)
    own = _by_own_weights(terms, tolerance) if inside else None
    if own is not None and _is_one_or_k(own, tolerance, scale):
        sizes = [r for r in [by_sizes(terms)] if r is not None]
        of_tokens = (r for r in unfair + sizes if r.unit == "tokens" and r.is_even(tolerance))
        return Objective(name, terms, next(of_tokens, own), inside)
    counted = [r for r in unfair if (r.unit in COUNTED or is_of_labels(r)) and not inside]
    even = [r for r in counted if r.is_even(tolerance)]
    if scale is not None and any(map(is_of_labels, even)):
        even.sort(key=lambda r: max(r.ledger.balance, scale) / min(r.ledger.balance, scale))
    units = [r for r in unfair if not r.of_part and not (inside and r.unit == "tokens")]
    weighted = [r for r in units if is_fair_but_for_a_constant(r, tolerance, scale)]
    off_by_k = [r for r in units if is_off_by_k(r, tolerance, scale)]
    off_by_k.sort(key=lambda reading: not reading.is_even(tolerance))
    by_count = filter(is_divided_by_its_count, units)
    divided = filter(is_divided_by_k_and_counts, units)
    readings = (Objective(name, terms, r, inside) for r in units)
    means = [o for o in readings if o.is_mean_of_counted(tolerance)]
    if means:
        return means[0]
    reading = next(chain(divided, weighted, off_by_k, by_count, even), unfair[0])
    return Objective(name, terms, reading, inside)


def _by_own_weights(terms: list[WeightedTerm], tolerance: float) -> Reading | None:
    """The sums of the weights that a loss gives its tokens, if each divides its micro-batch.

    None if the number of its elements does, too: they are then what it counts.
    """
    reading = by_loss_weights(terms)
    if reading is None or not reading.is_of_means(tolerance):
        return None
    by_elements = ledger_in("elements", terms)
    if by_elements is not None and Reading("elements", by_elements, terms).is_of_means(tolerance):
        return None
    return reading


def _is_one_or_k(reading: Reading, tolerance: float, scale: float | None) -> bool:
    is_one = scale is not None and abs(reading.ledger.balance / scale - 1) <= tolerance
    return is_one or is_off_by_k(reading, tolerance, scale)
