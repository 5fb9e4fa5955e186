"""Whether micro-batches may be episodes of reinforcement learning: pure predicates.

A policy loss weighs the steps of an episode by returns, advantages or ratios of probabilities.
Whether the steps of one are averaged or added up is a choice of its author. The losses beside it
that have the same steps, as that of a critic, are then averaged or added up with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model.losses.term_weights import differ, has_own_weights
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.readings import WeightedTerm
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import INSIDE, WEIGHT
from gradledger_monitor.rules.balance.evidence import is_undivided_alone
from gradledger_monitor.rules.balance.patterns import Closed

SINGLE_ELEMENTS = 3  # terms of one element each: a loop over the steps of an episode, not heads
FEWEST_BEFORE = 2  # windows that show the usual sizes of batches
FEW_ELEMENTS = 16  # exits or iterations of a model; episodes of a fixed length are longer


def weighs_elements(terms: list[WeightedTerm]) -> bool:
    """Whether a loss is the sum of single elements with different weights, as in REINFORCE.

    Those on several heads are the losses of several tasks. A few means that every micro-batch
    weighs alike are the exits or the iterations of a model.
    """
    losses: dict[tuple[str, int | None, bool], dict[tuple[int, int], list[float]]] = {}
    for t in terms:
        if t.tokens == 1:
            loss = t.loss_term
            of_loss = losses.setdefault((loss.kind, loss.head, loss.reduction == "mean"), {})
            of_loss.setdefault((t.rank, t.micro_batch), []).append(t.weight)
    return any(
        any(len(each) >= SINGLE_ELEMENTS and differ(each) for each in of_loss.values())
        and not (are_means and _are_fixed(list(of_loss.values())))
        for (_, _, are_means), of_loss in losses.items()
    )


def _are_fixed(micro_batches: list[list[float]]) -> bool:
    """Whether several micro-batches have the same few weights, in the same order."""
    first, *others = micro_batches
    equal = all(
        len(each) == len(first)
        and all(math.isclose(a, b, rel_tol=INSIDE) for a, b in zip(each, first, strict=True))
        for each in others
    )
    return bool(others) and len(first) <= FEW_ELEMENTS and equal


def may_pass_on_gradients(facts: StepFacts, objective: Objective) -> bool:
    """Whether the loss may be a product with cached gradients, as GradCache computes it.

    Such products of chunks add up to one gradient, and nothing needs to divide them. A loss that is
    linear in its last step, with other weights, looks the same. If something divides it, or a
    constant is in front of it, its weights have both signs, as most gradients do: a squared error
    that is weighted by its noise level is no such product.
    """
    if _adds_up_both_signs(facts, objective):
        return True
    terms = [term.loss_term for term in objective.terms]
    sums = all(t.kind.startswith("SumBackward") and t.of is None for t in terms)
    of_both_signs = any(t.weight_size is not None for t in terms)
    weighted_sum = objective.weighted_inside and sums
    product = all(t.kind.startswith("DotBackward") for t in terms)
    # by a constant, as by the number of chunks, and not by a count of the elements alone
    k = facts.micro_batches_of(objective)
    divided = of_both_signs and all(
        all(t.divisors) and not {t.elements, t.tokens, t.size, t.rows} & _divisors_besides(k, t)
        for t in terms
    )
    alone = is_undivided_alone(objective, with_coefficient=product or of_both_signs)
    return (product and alone) or (weighted_sum and (alone or divided))


def _divisors_besides(k: int, term: Term) -> set[float | None]:
    """The divisors of a loss that are not K; if K alone divides it, that may be a count, too."""
    divisors = set(map(number, term.divisors))
    return divisors - {k} or divisors


def _adds_up_both_signs(facts: StepFacts, objective: Objective) -> bool:
    """Whether losses of single tokens are added up with weights of both signs, and not divided.

    A gradient of a preference or policy loss raises some log-probabilities, and lowers others. A
    class weight or a mask has one sign. Weights of 1 and -1 are no gradient, but a difference of
    sums.
    """
    terms = [t for o in facts.objectives if o.kind == objective.kind for t in o.terms]
    singles = all(t.loss_term.reduction == "none" for t in terms)
    both = len({t.positive for t in terms}) > 1
    both = both or any(t.loss_term.weight_size is not None for t in terms)
    each = (number(t.loss_term.element_weight) for t in terms)
    shares = [w * t.factor / t.own_factor for w, t in zip(each, terms, strict=True) if w]
    sums = all(math.isclose(abs(share), 1.0, rel_tol=WEIGHT) for share in shares)  # no means
    cached = not any(map(_has_weights_of_one, terms))
    return singles and both and sums and cached and is_undivided_alone(objective)


def _has_weights_of_one(term: WeightedTerm) -> bool:
    """Whether the smallest or the largest weight of a token in a sum is 1, as of a bare sum."""
    loss = term.loss_term
    ends = map(number, (loss.weight_min, loss.weight_max, loss.weight))
    return any(end is not None and math.isclose(abs(end), 1.0, rel_tol=WEIGHT) for end in ends)


def may_be_of_episodes(facts: StepFacts, objective: Objective, past: Sequence[Closed] = ()) -> bool:
    """Whether a loss, or one beside it with the same steps, may be a policy loss of episodes."""
    steps = _steps(objective)
    return any(_may_be_policy_loss(o, past) and _steps(o) == steps for o in facts.objectives)


def may_be_of_tasks(objective: Objective, past: Sequence[Closed]) -> bool:
    """Whether micro-batches may be tasks of few examples, each with other classes.

    They have different numbers of classes, and the same number of samples for each class. Targets
    of sequences are none: their classes may be the positions of a sentence, as in a parser. Nor is
    a batch whose rows are the classes of one another: one is short, on each rank, and windows
    before have no other sizes.
    """
    terms, shots = [term.loss_term for term in objective.terms], set()
    for term in terms:
        flat = term.samples == term.rows == term.size == term.tokens
        if not flat or not term.classes or not term.tokens:
            return False
        shots.add(term.tokens / term.classes)
    (each, *others) = shots or {0.0}
    of_tasks = not others and each > 1 and each % 1 == 0 and len({t.classes for t in terms}) > 1
    return of_tasks and not _has_one_short_batch(objective, past)


def _has_one_short_batch(objective: Objective, past: Sequence[Closed]) -> bool:
    """Whether all micro-batches of a rank but one are of one size, as in most windows before."""
    sizes: dict[int, list[float]] = {}
    for term in objective.terms:
        sizes.setdefault(term.rank, []).append(term.tokens)
    full = max(map(max, sizes.values()))
    one_each = all(len(each) - 1 <= each.count(full) > 1 for each in sizes.values())
    whole = {full * len(objective.terms), sum(map(sum, sizes.values()))}
    same = sum(closed.tokens in whole for closed in past)
    return one_each and len(past) >= FEWEST_BEFORE and 2 * same > len(past)


def has_advantages_of_zero(facts: StepFacts, objective: Objective) -> bool:
    """Whether the loss of a micro-batch weighs all of its elements with zero, and others with both
    signs: a return that equals its baseline. What divides them gives both equal weight.
    """
    if all(term.loss_term.weight_size is None for term in objective.terms):
        return False
    busy = {(term.rank, term.micro_batch) for term in objective.terms}
    rest = [
        term
        for rank, applied in facts.applied_by_rank.items()
        for index, micro_batch in applied
        if (rank, index) not in busy
        for term in micro_batch.terms
    ]
    whole = [_outermost(term.loss_term) for term in objective.terms]
    return bool(rest) and all(
        term.tokens == 0
        and term.valid != 0
        and term.kind == objective.kind
        and any(math.isclose(_outermost(term), each, rel_tol=INSIDE) for each in whole)
        for term in rest
    )


def _outermost(term: Term) -> float:
    """What the outermost reduction gives all elements together."""
    return (term.elements or 0) * abs(number(term.element_weight) or 0.0)


def _may_be_policy_loss(objective: Objective, past: Sequence[Closed]) -> bool:
    """Whether the loss weighs every element of each micro-batch, by numbers that vary.

    By numbers of both signs, unless what divides them counts a part of the elements: these are in
    two losses. In a sum that nothing divides, a step may have an advantage of zero. Or by positive
    ones, if micro-batches have one dimension and different lengths, and no sum of these numbers
    divides them. In a batch of padded sequences, a mask leaves out some elements.
    """
    terms = [term.loss_term for term in objective.terms]
    signed = all(term.weight_size is not None and number(term.weight_min) for term in terms)
    if signed and all(term.undivided or term.elements in (None, term.tokens) for term in terms):
        return True
    flat = all(term.rows in (None, term.size) and term.size == term.elements for term in terms)
    weighs = all(has_own_weights(term) or term.tokens == 1 for term in terms)
    whole = objective.elements_count and objective.reading.unit == "elements"
    return whole and flat and weighs and _lengths_differ(objective, past)


def _lengths_differ(objective: Objective, past: Sequence[Closed]) -> bool:
    """Whether most micro-batches have a length of their own, or windows of one micro-batch."""
    lengths = [term.tokens for term in objective.terms]
    if len(lengths) == 1:
        lengths += [closed.tokens for closed in past if closed.tokens is not None]
    return 2 * len(set(lengths)) > len(lengths)


def _steps(objective: Objective) -> list[tuple[int, int, float]]:
    return sorted((term.rank, term.micro_batch, term.tokens) for term in objective.terms)
