"""What shows that a further objective lacks a division that the main one has: pure predicates.

Its balance contains its coefficient, so that no number of it is wrong by itself. A term that is
normalised over its micro-batch, and added on each of K, has a balance of K times its coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import BARE, Objective
from gradledger_monitor.model.readings import WeightedTerm
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT
from gradledger_monitor.rules.balance.divisors import (
    are_shares,
    divisors_of_micro_batches,
    is_mean_of_sums_alone,
    is_mean_over_all_alone,
    outer_constant,
    weighs_its_constant,
)
from gradledger_monitor.rules.balance.evidence import (
    SMOOTHING,
    Near,
    coefficient_explains,
    divides_by_all_positions,
    is_bare_reduction,
    is_round,
    is_undivided_coefficient,
    reductions,
    weight_of_elements,
    weight_of_micro_batch,
    whole_weights,
)
from gradledger_monitor.rules.balance.patterns import Closed, Diagnosis, is_fair

HALF = 2  # the formula of a divergence of normal distributions has a half
RAMPED = (
    "the constant in front of a further loss was another one in most windows before: it may be a "
    "weight that is raised or lowered in steps, and may contain the division by K"
)
FEWEST_DIVIDED = 3  # micro-batches from which a second division by as many is reported


def is_added_by_every_rank(facts: StepFacts, objective: Objective) -> bool:
    """Whether a penalty has R times its coefficient, because the ranks' gradients are added up.

    If its coefficient is not read, one that contains 1/R gives the same balance: authors write
    round ones.
    """
    ranks, combined = facts.run.world_size, facts.averaged or facts.all_reduce_factor is not None
    if not objective.is_penalty or ranks == 1 or not combined:
        return False
    if not Near(_factor_of_ranks(facts), facts.tolerance)(1.0):
        return False
    balance, coefficient = objective.ledger.balance, objective.coefficient
    if coefficient and facts.micro_batches_of(objective) != ranks:
        return Near(balance, facts.tolerance)(ranks * abs(coefficient))
    return is_round(balance / ranks) and not is_round(balance)


def is_in_one_micro_batch(main: Objective | None, objective: Objective) -> bool:
    """Whether one micro-batch alone has the main one: its balance shows no division by K.

    A detector has no class loss in a micro-batch without an object of that size.
    """
    of_main = set() if main is None else {t.micro_batch for t in main.terms}
    return len(of_main) == 1 < len({t.micro_batch for t in objective.terms})


def counts_ignored(facts: StepFacts, objective: Objective) -> bool:
    """Whether a summed cross entropy, or its smoothing, is divided by all positions.

    That is, ignored ones included. Another loss that the loop masks may be a mean over all of them
    on purpose, as the consistency of FixMatch is.
    """
    summed = objective.kind.startswith("NllLoss") and reductions(objective) == {"sum"}
    smoothing = objective.kind == SMOOTHING
    return (summed or smoothing) and divides_by_all_positions(facts, objective)


def is_undivided(facts: StepFacts, objective: Objective) -> bool:
    """Whether a further objective is added on every micro-batch without a division by K.

    A coefficient that already contains the 1/K gives the same balance: of the constants in front of
    a loss, the outermost is the author's weight, and others may belong to its formula (the number
    of experts of a router loss). If nothing divides the main one before the backward, what divides
    it afterwards divides all, such as a communication hook.
    """
    main = facts.objectives[0]
    if main.is_undivided and main.coefficient is None and not main.is_penalty:
        return False
    coefficients = {number(term.loss_term.coefficient) for term in objective.terms}
    counts = counts_of_ranks(facts, objective)
    if 1 in counts or not objective.has_one_term_in_each_of(sum(counts)) or len(coefficients) != 1:
        return False
    coefficient = coefficients.pop()
    return all(_lacks(facts, objective, coefficient, k) for k in set(counts))


def of_undivided(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> Diagnosis | None:
    """Of an undivided further objective: in doubt on a ramp, but for another K."""
    if not is_undivided(facts, objective):
        return None
    k = facts.micro_batches_of(objective)
    has_no_k = window_of_the_same_weight(facts, objective, past) is not None
    if has_no_k or not _is_ramped(facts, objective, past):
        return Diagnosis("term_missing", objective=objective, ratio=k)
    return Diagnosis("unmeasured", RAMPED, objective, k)


def _is_ramped(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> bool:
    """Whether the constant of a further objective was another one in most windows of this K.

    As a weight that a schedule raises: some of its values are round by chance.
    """
    whole = weight_of_micro_batch(facts, objective) or 0.0
    near, k = Near(whole, 2 * max(facts.tolerance, WEIGHT)), facts.micro_batches
    weights = [
        weight
        for closed in past
        if closed.micro_batches == k
        for name, weight in closed.further
        if name == objective.name
    ]
    return 2 * sum(map(near, weights)) < len(weights)


def counts_of_ranks(facts: StepFacts, objective: Objective) -> list[int]:
    """K of an objective, on each rank that has a term of it."""
    if facts.separate_tasks:
        return [facts.micro_batches_of(objective)] * len({term.rank for term in objective.terms})
    return [len(facts.applied_by_rank[rank]) for rank in {term.rank for term in objective.terms}]


def _lacks(facts: StepFacts, objective: Objective, coefficient: float | None, k: int) -> bool:
    if all(k in _divisors(term) and not _has_count(term, k) for term in objective.terms):
        return False
    outer = outer_constant(objective)
    if _is_plain_mean(facts, objective):
        return True
    if _has_divisors_without_k(facts, objective, k):
        alone = coefficient is None or coefficient == outer
        return alone and is_undivided_coefficient(outer, k, beside=True)
    if _is_sum_of_means(objective, facts.tolerance):
        may_contain = coefficient is not None and is_round(coefficient * k)
        return not may_contain and not _may_be_share(outer, k)
    weighs = _constant_that_it_weighs(facts, objective, k)
    if weighs is None or coefficient is None:
        return weighs is not None
    beside = _is_divided_beside(facts, objective)
    rest = abs(coefficient / (outer or 1.0))
    halved = beside and k != HALF and Near(rest, WEIGHT)(1 / HALF)
    counted = all(Near(rest, WEIGHT)(term.loss_term.elements or 0) for term in objective.terms)
    rest_is_formula = (
        weighs == abs(outer or 1.0) or halved or counted or not is_round(coefficient * k)
    )
    return is_undivided_coefficient(outer, k, beside) and rest_is_formula


def is_undivided_mean(facts: StepFacts, objective: Objective) -> bool:
    """Whether nothing divides the means of an objective, and its constant contains no 1/K.

    That is one below 1 that looks undivided; or the half of each of two means. Or the more usual
    one, if another loss has another constant, which looks undivided: no common factor is in both.
    Or one above 1, if another loss has no constant, and other divisors than K.
    """
    k, terms = facts.micro_batches_of(objective), objective.terms
    parts = len(terms) / len({(term.rank, term.micro_batch) for term in terms})
    constants = {number(term.loss_term.coefficient) for term in terms}
    constant = abs(constants.pop() or 1.0)
    plain = reductions(objective) == {"mean"} and objective.is_undivided and not constants
    intended = constant * parts * (facts.run.declared_scale or 1.0)
    is_k = Near(objective.ledger.balance, facts.tolerance)(k * intended)
    if k == 1 or objective.is_penalty or not plain or not is_k:
        return False
    outer = outer_constant(objective)
    if constant * parts == 1.0 or constant != abs(outer or 1.0):
        return constant * parts == 1.0
    others = [outer_constant(o) for o in facts.objectives if o is not objective]
    beside = any(is_undivided_coefficient(each, k) for each in others if each not in (None, outer))
    if constant < 1 and is_undivided_coefficient(outer, k):
        return True
    if constant > 1 and any(_contains_no_k(o, k) for o in facts.objectives if o is not objective):
        return True
    return beside and is_undivided_coefficient(outer, k, beside=True)


def lacks_the_same_division(facts: StepFacts, objective: Objective) -> bool:
    """Whether K does not divide it either, as the main loss: B is K times its constant.

    An outermost constant of 1/K may be that division.
    """
    k, constant = facts.micro_batches_of(objective), objective.coefficient
    if Near(abs(outer_constant(objective) or 0.0) * k, WEIGHT)(1.0):
        return False
    balance = objective.ledger.balance / (facts.run.declared_scale or 1.0)
    is_k = Near(balance / abs(constant or 1.0), facts.tolerance)(k) and not objective.is_penalty
    by_number = divisors_of_micro_batches(facts, objective) is not None
    return k > 1 and (is_k or by_number or is_mean_over_all_alone(facts, objective))


def is_right(facts: StepFacts, objective: Objective) -> bool:
    """Whether a loss beside the main one is divided rightly, so that this one has a weight."""
    balance = objective.ledger.balance / (facts.run.declared_scale or 1.0)
    undivided = objective.is_undivided_sum or (
        objective.is_undivided and facts.micro_batches_of(objective) > 1
    )
    return not (objective.is_penalty or undivided) and (
        is_fair(facts, objective) or coefficient_explains(facts, objective, balance)
    )


def may_be_a_weight(objective: Objective, k: int) -> bool:
    """Whether a loss of balance 1 may have a weight of 1/K instead of a division by K.

    A constant is a weight or the division: the graph shows the same. A cross entropy that is summed
    is divided by a count.
    """
    return k > 1 and (reductions(objective) == {"mean"} or is_bare_reduction(objective))


def lacks_the_division_of(facts: StepFacts, objective: Objective, right: Objective) -> bool:
    """Whether K divides a right loss, and each micro-batch of this one weighs its whole constant.

    Its outermost constant looks as if it contained no 1/K; or it is above 1 and may be any number,
    such as the square of a temperature; or the two are shares of one loss.
    """
    k, outer = facts.micro_batches_of(objective), abs(outer_constant(objective) or 1.0)
    whole = weighs_its_constant(facts, objective) or is_mean_of_sums_alone(facts, objective)
    if k == 1 or not whole:
        return False
    if not all(k in _divisors(term) for term in right.terms):
        return False
    above = outer >= 1 and not _may_be_share(outer, k)
    shares = are_shares([objective, right], k)
    return above or shares or is_undivided_coefficient(outer, k, beside=True)


def may_weigh_one_over_k(facts: StepFacts, objective: Objective) -> bool:
    """Whether 1/K multiplies a loss that nothing divides, and a division by K the main one."""
    k, main = facts.micro_batches_of(objective), facts.objectives[0]
    if k == 1 or main is objective or not objective.is_undivided:
        return False
    one_over_k = Near(abs(outer_constant(objective) or 0.0) * k, WEIGHT)(1.0)
    return one_over_k and all(k in _divisors(term) for term in main.terms)


def _contains_no_k(objective: Objective, k: int) -> bool:
    """Whether a loss has no constant in front of it, and is divided by other numbers than K."""
    terms = [] if objective.is_penalty else objective.terms
    return bool(terms) and all(
        t.loss_term.coefficient is None and _divisors(t) and not {0.0, k} & {*_divisors(t)}
        for t in terms
    )


def _has_divisors_without_k(facts: StepFacts, objective: Objective, k: int) -> bool:
    """Whether K divides the main loss, and other constants than K divide this one.

    What divides a sum may be the count of the window.
    """
    means = all(_is_mean(term) or term.loss_term.penalty for term in objective.terms)
    if not means:
        return _are_divided_by_their_rows(objective, k) and _divides_main(facts, k)
    for term in objective.terms:
        divisors = _divisors(term)
        whole = divisors and not any(divisor % 1 for divisor in divisors)
        if not whole or any(d % k == 0 for d in (*divisors, math.prod(divisors))):
            return False  # K is in it; or 0, of which nothing is known; or a value of the data
    return _divides_main(facts, k)


def _divides_main(facts: StepFacts, k: int) -> bool:
    return all(k in _divisors(term) for term in facts.objectives[0].terms)


def _are_divided_by_their_rows(objective: Objective, k: int) -> bool:
    """Whether the rows of each micro-batch alone divide a sum, and are not K: no K is in them."""
    counts = [(term.loss_term.rows, _divisors(term)) for term in objective.terms]
    return all(rows not in (None, k) and divisors == [rows] for rows, divisors in counts)


def _has_count(term: WeightedTerm, k: int) -> bool:
    """Whether a number of its elements is K, so that K may divide the loss as that."""
    counts = [term.tokens, term.loss_term.elements, *shape(term)]
    return k in counts or _may_cancel(term, k)


def _is_mean(term: WeightedTerm) -> bool:
    loss = term.loss_term
    return loss.reduction == "mean" or loss.kind.startswith("MeanBackward")


def _divisors(term: WeightedTerm) -> list[float]:
    return [number(divisor) or 0.0 for divisor in term.loss_term.divisors]


def _is_divided_beside(facts: StepFacts, objective: Objective) -> bool:
    """Whether a division is written for the main loss, and none for this one."""
    main = [term.loss_term.undivided for term in facts.objectives[0].terms]
    return objective.is_undivided and all(undivided is False for undivided in main)


def is_divided_twice(facts: StepFacts, objective: Objective) -> bool:
    """Whether K divides a further objective twice, and the main one once, or its count does alone.

    Or K divides it once, besides the count that alone divides the main one. One of the divisors may
    be a count of the loss, such as the number of layers; if a count of its elements, or of losses
    of its kind, is K, it is, unless the loss is a mean, which divides by its elements itself. A
    division by 2 is an average of two more often.
    """
    k, main = facts.micro_batches_of(objective), facts.objectives[0]
    if k < FEWEST_DIVIDED or k == facts.run.world_size:
        return False

    def divides(of: Objective, times: int) -> bool:
        return all(_divisors(term).count(k) == times for term in of.terms)

    losses = sum(other.kind == objective.kind for other in facts.objectives)
    by_window = is_divided_by_its_window(main)
    twice = divides(objective, 2) and (divides(main, 1) or by_window)
    return (
        (twice or (by_window and is_divided_by_count_and_k(objective, main, k)))
        and losses != k
        and not any(_may_be_count(term, k) for term in objective.terms)
    )


def is_divided_by_count_and_k(objective: Objective, main: Objective, k: int) -> bool:
    """Whether the number of tokens of the main objective divides it, and K does besides."""
    both = sorted([main.ledger.tokens, float(k)])
    return all(sorted(_divisors(term)) == both for term in objective.terms)


def is_divided_by_its_window(objective: Objective) -> bool:
    """Whether the number of its tokens in the window, over all ranks, is what divides it."""
    count = objective.ledger.tokens
    return all(_divisors(term) == [count] for term in objective.terms)


def _may_be_count(term: WeightedTerm, k: int) -> bool:
    """Whether K may be a count of the elements that the loop divides by, and not the mean."""
    loss = term.loss_term
    of_all = not loss.kind.startswith(BARE) or (loss.size or 0) == loss.elements
    divides_itself = loss.reduction == "mean" and of_all
    return not divides_itself and (_may_cancel(term, k) or k in shape(term))


def divide_each(objective: Objective, numbers: set[int], times: int = 1) -> bool:
    """Whether the numbers divide each term at least so often, in all."""
    return all(sum(d in numbers for d in _divisors(t)) >= times for t in objective.terms)


def shape(term: WeightedTerm) -> tuple[int | None, ...]:
    """The sizes of the dimensions of a loss, as far as they are recorded."""
    loss = term.loss_term
    return loss.rows, loss.samples, loss.positions, loss.size


def window_of_the_same_weight(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> int | None:
    """The K of an earlier window in which a micro-batch of this objective weighed the same.

    Nothing divides it, and the main loss had one balance in both windows: the share of this one is
    proportional to K. If its constant looks like one that contains 1/K, that of the usual window
    may be meant.
    """
    k, outer = facts.micro_batches, outer_constant(objective)
    if not objective.is_undivided:
        return None
    lengths = [c.micro_batches for c in windows_of_the_same_weight(facts, objective, past)]
    return next((n for n in lengths if n != k and not _may_be_share(outer, n)), None)


def windows_of_the_same_weight(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> list[Closed]:
    """The earlier windows of the same main balance where a micro-batch of this objective weighed
    the same.
    """
    whole = weight_of_micro_batch(facts, objective)
    if whole is None:
        return []
    tolerance = 2 * max(facts.tolerance, WEIGHT)
    equal, balanced = Near(whole, tolerance), Near(facts.objectives[0].ledger.balance, tolerance)
    return [
        closed
        for closed in past
        if closed.balance is not None
        and balanced(closed.balance)
        and any(equal(weight) for name, weight in closed.further if name == objective.name)
    ]


def _may_be_share(constant: float | None, k: int) -> bool:
    """Whether a constant looks like a round one that was divided by K: 0.0025 with K = 4."""
    return constant is not None and not is_round(constant) and is_round(constant * k)


def _constant_that_it_weighs(facts: StepFacts, objective: Objective, k: int) -> float | None:
    """The constant in front of the loss, or 1, if that is the weight of each micro-batch.

    Where something divides the loss, that was the number of its tokens then; not if these are K, or
    if each element of the loss is a sum of K, such as a divergence over as many latent dimensions,
    or if another constant in front of it is K, such as the number of experts of a router loss.
    """
    outer = outer_constant(objective) or 1.0
    inner = abs((objective.coefficient or outer) / outer)
    cancels = Near(inner, WEIGHT)(k) or any(_may_cancel(term, k) for term in objective.terms)
    if not objective.is_undivided and cancels:
        return None
    intended = (facts.run.declared_scale or 1.0) * _factor_of_ranks(facts)
    for constant in (abs(objective.coefficient or 1.0), abs(outer)):
        for weights in (*whole_weights(objective), *_weights_of_statistics(facts, objective)):
            near = [Near(weight / intended, facts.tolerance) for weight in weights]
            if all(is_near(constant) for is_near in near):
                return constant
    return None


def _weights_of_statistics(facts: StepFacts, objective: Objective) -> Iterator[list[float]]:
    """The weights of the elements of a sum of statistics, as of the load of experts.

    Each of them counts as a mean of the micro-batch, also in a sum. It averages all tokens or
    samples of the main loss; other means may be parts of a loss of each sample.
    """
    main = {(t.rank, t.micro_batch): t.loss_term for t in facts.objectives[0].terms}
    if reductions(objective) != {"sum"} or objective.is_penalty:
        return
    terms = [(t.loss_term, main.get((t.rank, t.micro_batch))) for t in objective.terms]
    if any(not _may_be_of_rows(own) for own, _ in terms) and all(
        _averages(own, of_main) for own, of_main in terms
    ):
        yield [term.weight for term in objective.terms]


def is_weighted_statistic(facts: StepFacts, objective: Objective) -> bool:
    """Whether a constant is in front of a sum of statistics: nothing shows that it has no 1/K."""
    weighted = outer_constant(objective) is not None
    return weighted and any(True for _ in _weights_of_statistics(facts, objective))


def _may_be_of_rows(term: Term) -> bool:
    """Whether as many elements as rows, or several for each, may be those of the rows."""
    elements, rows = term.elements or 0, term.averaged or 1
    return elements == rows if term.positions == 1 else elements % rows == 0


def _averages(term: Term, main: Term | None) -> bool:
    """Whether each element averages all rows of the main loss, maybe of several layers."""
    rows, elements = term.averaged, term.elements or 0
    if not rows or main is None:
        return False
    layers = rows % (main.size or math.inf) == 0 and elements % (main.rows or 1) != 0
    return layers or rows in (main.rows, main.samples, main.size)


def _may_cancel(term: WeightedTerm, k: int) -> bool:
    loss = term.loss_term
    elements, positions = loss.elements or 0, loss.positions or 0
    of_k = loss.size in (k * term.tokens, k * positions)  # a sum over rows of K numbers
    return k in (term.tokens, elements) or term.tokens == k * elements or of_k


def _factor_of_ranks(facts: StepFacts) -> float:
    """What the combination of the ranks multiplies their sum by: 1/R is an average."""
    return facts.all_reduce_factor or 1 / facts.ranks_divisor


def _is_plain_mean(facts: StepFacts, objective: Objective) -> bool:
    """Whether each micro-batch adds one mean, and no constant is in front of it.

    Constants behind the mean belong to its formula: the -0.5 of the divergence of a VAE.
    """
    intended = (facts.run.declared_scale or 1.0) * _factor_of_ranks(facts)
    means = all(term.loss_term.kind.startswith("MeanBackward") for term in objective.terms)
    weights = [weight_of_elements(term) / intended for term in objective.terms]
    return means and objective.is_undivided and all(Near(w, facts.tolerance)(1.0) for w in weights)


def _is_sum_of_means(objective: Objective, tolerance: float) -> bool:
    """Whether nothing divides it, and micro-batches of unequal size have equal total weights.

    Of a sum of means (a router loss), the number of means in front of it is not known.
    """
    terms = [term.loss_term for term in objective.terms]
    if not all(t.undivided and t.reduction != "mean" and not t.penalty for t in terms):
        return False
    totals = [term.tokens * term.weight for term in objective.terms]
    even = max(totals) <= min(totals) * (1 + tolerance)
    return even and len({term.tokens for term in objective.terms}) > 1
