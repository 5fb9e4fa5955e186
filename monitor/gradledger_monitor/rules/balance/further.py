"""What shows that a further objective lacks a division that the main one has: pure predicates.

Its balance contains its coefficient, so that no number of it is wrong by itself. A term that is
normalised over its micro-batch, and added on each of K, has a balance of K times its coefficient.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT
from gradledger_monitor.rules.balance.evidence import (
    Near,
    common_coefficient,
    is_round,
    is_undivided_coefficient,
    weight_of_micro_batch,
    whole_weights,
)
from gradledger_monitor.rules.balance.patterns import Closed


def is_added_by_every_rank(facts: StepFacts, objective: Objective) -> bool:
    """Whether a penalty has R times its coefficient, because the ranks' gradients are added up.

    A coefficient that contains 1/R gives the same balance: authors write round ones.
    """
    ranks, combined = facts.run.world_size, facts.averaged or facts.all_reduce_factor is not None
    if not objective.is_penalty or ranks == 1 or not combined:
        return False
    if not Near(_factor_of_ranks(facts), facts.tolerance)(1.0):
        return False
    balance = objective.ledger.balance
    return is_round(balance / ranks) and not is_round(balance)


def is_undivided(facts: StepFacts, objective: Objective) -> bool:
    """Whether a further objective is added on every micro-batch without a division by K.

    A coefficient that already contains the 1/K gives the same balance: of the constants in front of
    a loss, the outermost is the author's weight, and others may belong to its formula (the number
    of experts of a router loss).
    """
    k, terms = facts.micro_batches_of(objective), objective.terms
    coefficients = {number(term.loss_term.coefficient) for term in terms}
    ranks = len({term.rank for term in terms})
    if k == 1 or len(terms) != k * ranks or len(coefficients) != 1:
        return False
    coefficient = coefficients.pop()
    if _is_sum_of_means(objective, facts.tolerance):
        return not (coefficient is not None and is_round(coefficient * k))
    weighs = _constant_that_it_weighs(facts, objective, k)
    if weighs is None or coefficient is None:
        return weighs is not None
    outer = number(terms[0].loss_term.outer_coefficient) or coefficient
    rest_is_formula = weighs == abs(outer) or not is_round(coefficient * k)
    return is_undivided_coefficient(outer, k) and rest_is_formula


def is_undivided_in_all_windows(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> bool:
    """Whether micro-batches of windows with another K, of a right main loss, weigh the same."""
    k, whole = facts.micro_batches_of(objective), weight_of_micro_batch(objective)
    others = [c.further for c in past if c.micro_batches != k]
    equal = Near(whole or 0.0, 2 * max(facts.tolerance, WEIGHT))
    return any(equal(w) for further in others for name, w in further if name == objective.name)


def _constant_that_it_weighs(facts: StepFacts, objective: Objective, k: int) -> float | None:
    """The constant in front of the loss, or 1, if that is the weight of each micro-batch.

    Where something divides the loss, that was the number of its tokens then; not if these are K.
    """
    terms = [term.loss_term for term in objective.terms]
    if not all(t.undivided for t in terms) and any(term.tokens == k for term in objective.terms):
        return None
    outer = number(terms[0].outer_coefficient) or 1.0
    intended = (facts.run.declared_scale or 1.0) * _factor_of_ranks(facts)
    for constant in (abs(common_coefficient(objective) or 1.0), abs(outer)):
        for weights in whole_weights(objective):
            near = [Near(weight / intended, facts.tolerance) for weight in weights]
            if all(is_near(constant) for is_near in near):
                return constant
    return None


def _factor_of_ranks(facts: StepFacts) -> float:
    """What the combination of the ranks multiplies their sum by: 1/R is an average."""
    return facts.all_reduce_factor or 1 / facts.ranks_divisor


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
