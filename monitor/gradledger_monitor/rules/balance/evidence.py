"""What the graph and the weights of an objective show about its balance: pure predicates.

``diagnosis`` applies them in the order of their strength.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from gradledger_monitor.model.losses.repeated import (
    have_equal_losses,
    may_have_parts_of_one_loss,
    passes_of_one_loss,
)
from gradledger_monitor.model.losses.term_weights import outermost_constant
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import BARE, Objective
from gradledger_monitor.model.readings import (
    WeightedTerm,
    entries_of_a_position,
    is_divided_by_its_count,
)
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT

SINGLE = 2e-6  # relative error of a ratio of two single-precision numbers
LISTS = 3  # micro-batches that must have as many elements as a list has pairs
SMOOTHING = "LabelSmoothing"  # kind of a sum of the log-probabilities of all classes
PICKS = ("Gather", "Index")  # of one log-probability per token, by hand
# Beginnings of the kinds of losses: cross entropies against class indices, and all of which an
# element is a token, or a whole example.
BY_INDEX = ("NllLoss", *PICKS)
_OF_TOKENS = (*BY_INDEX, "SoftCrossEntropy", "KlDiv", SMOOTHING)
_ROUND = (1, 2, 3, 5)  # first digits of coefficients that people write
_USUAL = (1, 5)


class Near:
    """Whether a balance equals a value within a relative tolerance."""

    def __init__(self, balance: float, tolerance: float) -> None:
        self._balance, self._tolerance = balance, tolerance

    def __call__(self, value: float) -> bool:
        return value != 0 and abs(self._balance / value - 1) <= self._tolerance


def reductions(objective: Objective) -> set[str]:
    """The reductions of its terms: "mean", "sum", "none"."""
    return {term.loss_term.reduction for term in objective.terms}


def is_bare_reduction(objective: Objective) -> bool:
    """Whether the loss is a bare mean or sum, whose elements have an unknown meaning."""
    return any(term.loss_term.kind.startswith(BARE) for term in objective.terms)


def has_known_unit(objective: Objective) -> bool:
    """Whether a sum of this loss is divided by what its ledger counts, and not by another number.

    That of a cross entropy is: tokens. Other sums may be divided by positive anchors, by a constant
    length, or by the sum of their targets, which the graph does not show. A mean counts itself.
    """
    if is_bare_reduction(objective) or objective.reading.unit == "micro_batches":
        return False
    own = all(
        term.loss_term.of is None and term.loss_term.kind.startswith(_OF_TOKENS)
        for term in objective.terms
    )
    return own or "mean" in reductions(objective)


def ignores_targets(objective: Objective) -> bool:
    """Whether the loss itself ignores the targets of the tokens without a weight.

    It does if it adds up its tokens, or examples. A loss of each token may also be multiplied by a
    mask, such as that of the hard ones, or of those with a confident target; not if all that it
    does not ignore have a weight.
    """
    terms = [term.loss_term for term in objective.terms]
    of_tokens = all(term.kind.startswith(_OF_TOKENS) for term in terms)
    return of_tokens and all(t.reduction != "none" or t.valid == t.tokens for t in terms)


def may_mask_elements(objective: Objective) -> bool:
    """Whether it has a loss for each element, which the author may multiply by a mask.

    And these are the elements of its outermost reduction: that is not one over sequences.
    """
    terms = [term.loss_term for term in objective.terms]
    single = all(t.reduction == "none" and t.size in (None, t.elements) for t in terms)
    return single and not (is_bare_reduction(objective) or ignores_targets(objective))


def is_divided_by_a_count(facts: StepFacts, objective: Objective) -> bool:
    """Whether what divides each micro-batch, or each rank, is known: the same, or a count.

    Or a count multiplies it: a framework weighs micro-batches by their shares of the samples, and
    the loss is a sum.
    """
    terms = objective.reading.terms
    ranks = {term.rank for term in terms}
    totals = [line.tokens * line.weight for line in objective.ledger.lines]
    of_rank = [sum(t for t, x in zip(totals, terms, strict=True) if x.rank == r) for r in ranks]
    columns = [totals, _totals_of_parts(facts, objective)]
    columns += [] if len(ranks) == 1 else [of_rank]
    columns.append([line.weight / (line.tokens or math.inf) for line in objective.ledger.lines])
    for counts in (
        [term.loss_term.rows for term in terms],
        [term.loss_term.positions for term in terms],
        [term.loss_term.size for term in terms],
    ):
        columns.append([t / (n or math.inf) for t, n in zip(totals, counts, strict=True)])
    spread = 1 + 2 * facts.tolerance
    return any(c and min(c) > 0 and max(c) <= min(c) * spread for c in columns)


def is_divided_by_two_ks(facts: StepFacts, objective: Objective, last: int) -> bool:
    """Whether K divides some micro-batches, and that of the last window the others.

    A loop that grows K inside a window divides by the K of the moment.
    """
    constant = abs(objective.coefficient or 1.0) * (facts.run.declared_scale or 1.0)
    counts = {facts.micro_batches_of(objective), last}
    totals = objective.ledger.weights_of_micro_batches()
    near = [Near(total / constant * facts.ranks_divisor, facts.tolerance) for total in totals]
    return len(counts) == 2 and all(any(of(1 / k) for k in counts) for of in near)


def _totals_of_parts(facts: StepFacts, objective: Objective) -> list[float]:
    """The weight of each micro-batch over all objectives of this kind, which may be parts of one.

    The elements of one reduction may be joined from several parts, as good and bad examples are.
    """
    totals: dict[tuple[int, int], float] = {}
    for term in (t for o in facts.objectives if o.kind == objective.kind for t in o.terms):
        key = (term.rank, term.micro_batch)
        whole = term.tokens * term.weight if term.loss_term.reduction == "sum" else 0.0
        own = weight_of_elements(term) or whole
        totals[key] = totals.get(key, 0.0) + own
    return list(totals.values())


def divides_by_samples(facts: StepFacts, objective: Objective) -> bool:
    """Whether the number of samples of the window divides a loss, besides a constant."""
    ledger, constant = objective.ledger, abs(objective.coefficient or 1.0)
    if not facts.samples or not ledger.balance:
        return False
    divisor = ledger.tokens * constant * (facts.run.declared_scale or 1.0) / ledger.balance
    return Near(divisor, facts.tolerance)(facts.samples)


def is_divided_by(objective: Objective, count: int) -> bool:
    """Whether each term is divided by that constant, and by no other number."""
    return all([number(d) for d in t.loss_term.divisors] == [count] for t in objective.terms)


def is_sum(facts: StepFacts, objective: Objective) -> bool:
    """Every token weighs 1, or 1 averaged over ranks or micro-batches: nothing divides by N.

    If the loop adds up the gradients of the ranks, nothing averages them.
    """
    if (
        is_bare_reduction(objective)
        or "mean" in reductions(objective)
        or objective.ledger.tokens <= 1
    ):
        return False
    k, ranks = facts.micro_batches_of(objective), facts.run.world_size if facts.averaged else 1
    if facts.all_reduce_factor is not None and Near(facts.all_reduce_factor, facts.tolerance)(1.0):
        ranks = 1
    weights = {line.weight for line in objective.ledger.lines if line.tokens}
    plain = [1.0, 1 / ranks]
    if not any(_is_reduced_by_mean(term) for term in objective.terms):
        plain += [1 / k, 1 / (k * ranks)]
    return all(any(Near(w, facts.tolerance)(p) for p in plain) for w in weights)


def is_reduced_by_mean(objective: Objective) -> bool:
    """Whether each micro-batch's loss is a mean, by a reduction of PyTorch or of single losses."""
    means = (t.loss_term.reduction == "mean" or _is_reduced_by_mean(t) for t in objective.terms)
    return all(means)


def _is_reduced_by_mean(term: WeightedTerm) -> bool:
    """Whether each token weighs less than 1, and no number that the loop wrote divides it.

    What divides single elements, as the lengths of the sequences of a policy loss, is not read.
    """
    loss = term.loss_term
    # by 1, the steps that accumulate at the moment, which divides nothing
    mean = not loss.divisors and Near(weight_of_elements(term), WEIGHT)(term.own_factor)
    divided = not loss.undivided and any(number(d) != 0 for d in loss.divisors or [1.0])
    if loss.reduction != "none" or (divided and not mean) or loss.coefficient is not None:
        return False
    return term.weight < min(1.0, term.own_factor) * (1 - WEIGHT)


def holds_the_whole_window(facts: StepFacts) -> bool:
    """Whether each micro-batch of a rank may have one and the same loss of the window.

    A contrastive loss over cached features is so: rows of the micro-batch's own part get gradients,
    and the others are constants. Its targets are 0, 1, 2 and so on, and its values are equal; or
    the graph shows the parts, and dropout makes the values differ. It is known if both hold.
    """
    for rank, record in facts.records.items():
        batches, applied = record.micro_batches, facts.applied_by_rank[rank]
        if passes_of_one_loss(applied) > 1 or len(batches) == 1:
            return False
        consecutive = all(b.consecutive_target for b in batches) and have_equal_losses(batches)
        if not (consecutive or may_have_parts_of_one_loss(applied)):
            return False
    return True


def may_have_pairs_of_lists(objective: Objective) -> bool:
    """Whether each micro-batch has as many elements as a list has pairs: 1, 3, 6, 10, 15, ...

    A reward model is trained on all pairs of a ranked list, and each list may count once. Only of
    a reduction of elements whose meaning is not known.
    """
    counts: dict[tuple[int, int], float] = {}
    for term in objective.terms:
        key = (term.rank, term.micro_batch)
        counts[key] = counts.get(key, 0.0) + term.tokens
    roots = [math.isqrt(8 * round(count) + 1) for count in counts.values()]
    pairs = all(r * r == 8 * round(c) + 1 for r, c in zip(roots, counts.values(), strict=True))
    return is_bare_reduction(objective) and len(counts) >= LISTS and pairs


def starts_from_earlier_losses(objective: Objective) -> bool:
    """Whether the first backward of each rank has one loss on a head, the second two, and so on.

    A loop that adds each loss to a running total, and calls backward on the total every time, adds
    the gradients of earlier losses again.
    """
    if all(term.part < 3 for term in objective.terms):
        return False
    by_rank: dict[int, list[int]] = {}
    losses = Counter((term.rank, term.micro_batch) for term in objective.terms)
    for (rank, _), count in sorted(losses.items()):
        by_rank.setdefault(rank, []).append(count)
    return all(counts == [*range(1, len(counts) + 1)] for counts in by_rank.values())


def is_function_of_log_probabilities(objective: Objective) -> bool:
    """Whether the elements are a function of what a loss by hand or a custom function returns."""
    of = objective.terms[0].loss_term.of
    return of is not None and (of.startswith(PICKS) or is_bare_reduction(objective))


def divides_by_all_positions(facts: StepFacts, objective: Objective) -> bool:
    """Each token's weight is 1 / (K * positions of its micro-batch), ignored positions included."""
    return constant_over_positions(facts, objective) is not None


def constant_over_positions(
    facts: StepFacts, objective: Objective, targets: bool = False
) -> float | None:
    """What multiplies a loss that is divided by all positions: 1, or its constant (T**2).

    Or by all ``targets``, which are those that it does not ignore.

    ``weight * positions * K`` is then that number for every micro-batch; for averaged ranks, times
    R. It is the number of entries of a position if these are added up. Or it is one over the
    positions of the window, over all ranks; not of means, which hold their own count. None if it is
    divided otherwise.
    """
    terms = objective.terms
    sizes = [(t.loss_term.valid if targets else t.loss_term.size) or 0 for t in terms]
    ignored = any(size != t.tokens for size, t in zip(sizes, terms, strict=True))
    if not ignored or not all(sizes):
        return None
    share = facts.micro_batches_of(objective) * facts.ranks_divisor
    near = [Near(term.weight, facts.tolerance) for term in terms]
    weighted = list(zip(near, sizes, strict=True))
    entries = {entries_of_a_position(term) or 1 for term in terms}
    added = float(entries.pop()) if len(entries) == 1 else 1.0
    for constant in (1.0, abs(objective.coefficient or 1.0), added):
        if all(is_near(constant / (size * share)) for is_near, size in weighted):
            return constant
    whole = sum(sizes)
    if "mean" not in reductions(objective) and all(is_near(1 / whole) for is_near in near):
        return 1.0
    return None


def is_multiplied_by_samples(facts: StepFacts, objective: Objective) -> bool:
    """Whether the outermost factor of every loss is the batch size, as in YOLOv5.

    It accumulates to a nominal batch size, and each sample has the same weight in any batch.
    """
    sizes = {record.batch_size for record in facts.records.values()}
    factors = {outermost_constant(term.loss_term) for term in objective.terms}
    return len(sizes) == 1 and factors == sizes and None not in sizes and sizes != {1}


def is_weight(coefficient: float | None, k: int) -> bool:
    """Whether a constant in front of the loss is its weight, and not 1/K, once or twice."""
    near = Near(abs(coefficient or 0.0) or 1.0, SINGLE)
    return coefficient is not None and not any(near(k**-n) for n in (0, 1, 2))


def is_mean(facts: StepFacts, objective: Objective) -> bool:
    """Whether the loss of each micro-batch divides by its own count."""
    if objective.reading.unit == "micro_batches" or reductions(objective) == {"mean"}:
        return True
    return is_mean_by_weight(facts, objective)


def is_mean_by_weight(
    facts: StepFacts, objective: Objective, excess: float = 1.0, count: int | None = None
) -> bool:
    """Whether each micro-batch has the constant in front of the loss as its total weight.

    K, or ``count``, may divide it, once or twice, and the combination of the ranks multiply it by
    ``excess``.
    """
    constant = abs(objective.coefficient or 1.0) * (facts.run.declared_scale or 1.0)
    totals = objective.ledger.weights_of_micro_batches()
    least, most = min(totals), max(totals)
    near = Near(most / constant / excess * facts.ranks_divisor, facts.tolerance)
    k = count or facts.micro_batches_of(objective)
    return Near(least, 2 * facts.tolerance)(most) and any(near(k**-n) for n in (0, 1, 2))


def is_undivided_alone(objective: Objective, with_coefficient: bool = False) -> bool:
    """Whether nothing divides the loss of any micro-batch, after its own mean."""
    return objective.is_undivided and (
        with_coefficient or all(t.loss_term.coefficient is None for t in objective.terms)
    )


def coefficient_explains(facts: StepFacts, objective: Objective, balance: float) -> bool:
    """B is the constant that the loss is multiplied by, without an outermost factor of 1/K."""
    coefficient = objective.coefficient
    if coefficient is None or _divides_by_k_again(facts, coefficient):
        return False
    outer, k = number(objective.terms[0].loss_term.outer_coefficient), facts.micro_batches
    near, divides = Near(balance, facts.tolerance), outer is not None and Near(outer, SINGLE)(1 / k)
    if divides and all(k in map(number, t.loss_term.divisors) for t in objective.terms):
        return near(abs(coefficient)) or near(abs(coefficient) * k)  # K divides it besides
    return near(abs(coefficient * (k if divides else 1)) or 1.0)


def _divides_by_k_again(facts: StepFacts, coefficient: float) -> bool:
    """Whether a coefficient is 1/K, as are the gradients after backward, by a pipeline's schedule.

    A round one, such as 0.5 with K = 2, may be a weight.
    """
    k = facts.micro_batches
    factors = (abs(coefficient), facts.shared_factors[facts.lowest_rank])
    divided = k > 1 and all(Near(factor * k, facts.tolerance)(1.0) for factor in factors)
    return divided and not is_round(coefficient)


def is_half_squared_error(facts: StepFacts, objective: Objective, balance: float) -> bool:
    """Half the mean squared error, as textbooks write it; the half may also be 1/K or 1/R.

    It is no half of the author if his divisors are known, and none of them is 2.
    """
    terms = [term.loss_term for term in objective.terms]
    if any(term.kind != "MseLossBackward0" for term in terms):
        return False
    halved = any(2 in term.divisors or term.coefficient is not None for term in terms)
    shown = is_divided_by_its_count(objective.reading) and not halved
    return not shown and Near(balance, facts.tolerance)(0.5)


def is_one_divided_cross_entropy(objective: Objective) -> bool:
    """Each micro-batch has one cross entropy, or chunks of one, that is divided by something.

    Several means may be the losses of several tasks: half of each of two is their mean.
    """
    terms = [term.loss_term for term in objective.terms]
    single = len(terms) == len({(term.rank, term.micro_batch) for term in objective.terms})
    if not single and reductions(objective) != {"sum"}:
        return False
    return all(t.kind.startswith("NllLoss") and t.undivided is False for t in terms)


def has_one_term_in_each(objective: Objective, micro_batches: int) -> bool:
    """Whether that many micro-batches of each rank have one term: the loss is not chunked."""
    ranks = len({term.rank for term in objective.terms})
    return objective.has_one_term_in_each_of(micro_batches * ranks)


def weight_of_micro_batch(facts: StepFacts, objective: Objective) -> float | None:
    """The total weight of each micro-batch in the applied gradient, if it is the same in all.

    None of a loss that is added once in a window, as a penalty may be: its weight is right.
    """
    if not has_one_term_in_each(objective, facts.micro_batches):
        return None
    for weights in whole_weights(objective):
        if 0 < max(weights) <= min(weights) * (1 + 2 * WEIGHT):
            return weights[0]
    return None


def whole_weights(objective: Objective) -> Iterator[list[float]]:
    """The weights of whole micro-batches: of functions of them, by elements, by tokens."""
    if objective.reading.unit == "micro_batches":
        yield [line.weight for line in objective.ledger.lines]
        return
    elements = [weight_of_elements(term) for term in objective.terms]
    yield [each for each in elements if each] if all(elements) else [0.0]
    yield [term.tokens * term.weight for term in objective.terms]


def weight_of_elements(term: WeightedTerm) -> float:
    """What the outermost reduction gives all elements together, masked ones included."""
    loss = term.loss_term
    return (loss.elements or 0) * abs(number(loss.element_weight) or 0.0) * term.factor


def is_undivided_coefficient(coefficient: float | None, k: int, beside: bool = False) -> bool:
    """Whether a coefficient looks like one that does not contain 1/K.

    Authors write round coefficients. With K = 4, 0.0025 is not round but 0.0025 * 4 = 0.01 is, so
    it is read as 0.01 / 4; of 0.01 and 0.04 only the first is round, so 0.01 is read as undivided.
    If both are round (0.5 and 2), nothing separates them, and the harmless objective wins. But if a
    division is written for the loss ``beside`` this one, hardly anything is divided in constants:
    then the more usual one decides, which is 0.5, or that of one digit, which is 0.4 and not 1.6.
    """
    if coefficient is None:
        return True
    if beside and _mantissa(coefficient) % 1 == 0 and _mantissa(coefficient * k) % 1:
        return True
    usual = _USUAL if beside and _mantissa(coefficient) in _USUAL else _ROUND
    return is_round(coefficient) and _mantissa(coefficient * k) not in usual


def is_round(value: float) -> bool:
    """Whether authors write such numbers as coefficients: 1, 0.02, 500."""
    return _mantissa(value) in _ROUND


def _mantissa(value: float) -> float:
    """The decimal mantissa, from 1 to below 10, to three places: 0.025 -> 2.5, 0.0099999 -> 1."""
    return float(f"{abs(value):.3e}".split("e")[0])


class Idle(NamedTuple):
    """Micro-batches that would make B = 1 if they had tokens, and ranks that have none at all."""

    micro_batches: int
    total: int
    ranks: int


def without_tokens(facts: StepFacts, objective: Objective | None) -> Idle | None:
    """Whether each micro-batch weighs 1 / (K * R), and those of some ranks have no token.

    Or did not run: K is that of the rank with most. Not if these have another loss. Of one rank,
    its micro-batches with a loss.
    """
    ranks = facts.run.world_size
    if objective is None or not (facts.averaged or ranks == 1) or facts.missing_ranks:
        return None
    if ranks == 1 and not all(micro_batch.terms for _, micro_batch in facts.applied):
        return None
    count = ranks * max(len(applied) for applied in facts.applied_by_rank.values())
    lines = [line for each in facts.objectives for line in each.ledger.lines]
    busy = {(line.rank, line.micro_batch) for line in lines if line.tokens and line.weight}
    weights = [weight for weight in objective.ledger.weights_of_micro_batches() if weight]
    near = Near((facts.run.declared_scale or 1.0) / count, facts.tolerance)
    if not len(weights) == len(busy) < count or not all(map(near, weights)):
        return None
    return Idle(count - len(busy), count, ranks - len({rank for rank, _ in busy}))
