"""Explains a divisor that counts elements without a weight: padding, or a mask that is a choice.

A mean over all positions gives each position the same weight in every window if the mask leaves out
a constant share: that is a constant factor. It does on average if the mask is drawn at random. If
the share follows the data, as that of padding does, so does the weight of an element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.readings import WeightedTerm
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.token_ledger import total
from gradledger_monitor.rules.balance.beside import (
    constant_beside,
    counts_ignored_of,
    cross_entropy_beside,
    shares_weight,
)
from gradledger_monitor.rules.balance.evidence import (
    SMOOTHING,
    Near,
    constant_over_positions,
    ignores_targets,
    is_bare_reduction,
    is_function_of_log_probabilities,
    may_mask_elements,
    reductions,
)
from gradledger_monitor.rules.balance.patterns import (
    ONE_MORE,
    Closed,
    Diagnosis,
    Pattern,
    wrong_windows,
)

MASKED = (
    "some elements of the loss have no weight, and whether its divisor should count them is not "
    'known; if the loss is right, declare contract="sample"'
)
MASKED_TOKENS = f'{MASKED}; if only the elements with a weight are tokens, declare contract="token"'
SMOOTHED = (
    "the smoothing counts positions that the cross entropy on the same logits ignores; if that is "
    'intended, declare contract="sample"'
)
DIVERGENCE = (
    "a loss on the logits of a cross entropy counts all positions, of which that ignores some: "
    "padding, or a prompt, whose share differs between batches; if all of them are meant, declare "
    'contract="sample"'
)
CONSTANT_SHARE = (
    "That is the share of the elements that have a weight: its divisor counts the others, too. The "
    "share is the same in every window so far, so that it is a constant factor"
)
# Standard deviations of a sum of squares, above which shares differ by more than chance: of a
# million windows of a mask that is drawn at random, hardly one is above it.
BEYOND_CHANCE = 5.0
SHOWN = 2  # earlier windows that show a constant share
ROUNDED = 0.02  # of a count that a share of all elements is rounded to
RAGGED = 3  # sizes of micro-batches; two are those of a loader whose last batch is short
# Patterns of windows of which nothing but the share of their elements may explain the balance.
_OPEN: frozenset[Pattern] = frozenset({"padding", "pending", "unmeasured", "constant"})


class _Share(NamedTuple):
    """The elements with a weight of a micro-batch, or of an earlier window, and all of them."""

    counted: float
    size: float
    micro_batches: int = 1  # of all ranks


def by_masked_elements(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> Diagnosis | None:
    """Whether each micro-batch is divided by all its positions, and what their share shows."""
    constant = constant_over_positions(facts, objective)
    if constant is None:
        return None
    near = Near(objective.ledger.balance, facts.tolerance)
    wrong = wrong_windows(past)
    alike = {c.pattern for c in wrong if near(c.balance or 0.0)}
    padding = Diagnosis("padding", objective=objective, constant=constant)
    if ignores_targets(objective):
        return padding if alike <= {"padding"} and not _averaged_again(facts, objective) else None
    before = list(_shares_before(facts, objective, past, constant))
    shares = [*before, *_shares_now(objective)]
    if len(before) == len(wrong) and _is_constant(shares):
        if len(wrong) < SHOWN:
            return Diagnosis("pending", ONE_MORE, objective)
        return Diagnosis("constant", "", objective, evidence=CONSTANT_SHARE)
    if not alike <= _OPEN:
        return None  # as many positions count by chance as an earlier balance states
    # a mean of means of different sizes is wrong in any unit
    ragged = _is_ragged(_sizes(objective)) or any(c.pattern == "padding" for c in wrong)
    if not ragged and _may_be_drawn(shares):
        return Diagnosis("unmeasured", MASKED, objective)
    return padding


def _averaged_again(facts: StepFacts, objective: Objective) -> bool:
    """Whether all tokens of the window divide each loss, and averaging the ranks explains B.

    1 / R of all positions may have targets.
    """
    scale, ranks = facts.run.declared_scale or 1.0, facts.run.world_size
    near, count = Near(objective.ledger.balance, facts.tolerance), objective.ledger.tokens
    divided = all(count in map(number, term.loss_term.divisors) for term in objective.terms)
    return divided and facts.averaged and near(scale / ranks)


def masked_may_count(
    facts: StepFacts, objective: Objective, past: Sequence[Closed], intended: float
) -> bool:
    """Whether the contract may hold in elements of which some have no weight.

    Of a function of log-probabilities, such an element is masked, or its weight is zero by design
    (an advantage). If the author counted some of these, too, the divisor is between the elements
    that have a weight and all of them. So is a mean over the pixels of images of one size, or over
    as many tokens in each batch, of which a mask keeps the hard or the confident ones: it has one
    divisor in all windows. If the sizes differ, a divisor that counts them is a mistake.
    """
    mean = objective.kind.startswith("MeanBackward")
    weighs = (
        objective.weighted_inside
        or is_function_of_log_probabilities(objective)
        or (mean and not _is_padded(facts, objective, past))
        or (may_mask_elements(objective) and not _is_ragged(_all_sizes(facts, objective, past)))
    )
    if objective.elements_count or not weighs:
        return False
    weights = [
        (t, _outer_weight(t) if objective.weighted_inside else t.weight) for t in objective.terms
    ]
    counted = total(t.tokens * weight for t, weight in weights)
    whole = total((t.loss_term.elements or 0) * w for t, w in weights)
    return counted <= intended <= whole * (1 + facts.tolerance)


def counts_all_targets(facts: StepFacts, objective: Objective) -> bool:
    """Whether the number of targets divides a loss of each, of which a mask leaves some out.

    Of each micro-batch, or of the window: so are the hard ones, or those that are drawn. A loss
    that ignores nothing may count padding. The contract "token" states that these do not count.
    """
    losses = [term.loss_term for term in objective.terms]
    ignores = any((loss.valid or 0) < (loss.size or 0) for loss in losses)
    if facts.run.contract == "token" or not ignores or ignores_targets(objective):
        return False
    return constant_over_positions(facts, objective, targets=True) is not None


def may_count_more(facts: StepFacts, objective: Objective, past: Sequence[Closed] = ()) -> bool:
    """Whether a number between the elements with a weight and all of them divides a loss of each.

    The window, or each micro-batch and K: what a mask of the loop leaves out of them, another one
    may count, as that of the padding does beside one of the hard ones. Such a number is never the
    smaller one in an earlier window. The contract "token" states that it is wrong.
    """
    single = reductions(objective) == {"none"} and not is_bare_reduction(objective)
    if not single or ignores_targets(objective) or facts.run.contract == "token":
        return False
    terms, intended = objective.terms, facts.run.declared_scale or 1.0
    if objective.reading.is_even(facts.tolerance):
        totals = [(objective.ledger.balance, total(_weight_of_all(t) for t in terms))]
    else:
        share = facts.micro_batches_of(objective) * facts.ranks_divisor
        totals = [(t.tokens * t.weight * share, _weight_of_all(t) * share) for t in terms]
    least, most = intended * (1 - facts.tolerance), intended * (1 + facts.tolerance)
    before = [c.balance or 0.0 for c in past if c.unit == objective.reading.unit]
    if any(balance > most for balance in before):
        return False
    between = any(counted < least and most < whole for counted, whole in totals)
    return between and all(counted <= most and least <= whole for counted, whole in totals)


def _weight_of_all(term: WeightedTerm) -> float:
    return (term.loss_term.size or 0) * term.weight


def by_ignored_beside(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> Diagnosis | None:
    """Whether a loss counts positions that the cross entropy on the same logits ignores.

    A smoothing with the weight that the cross entropy lacks must not. Another one, and a
    divergence, may be meant for all positions, unless they are padded: then their number differs
    between batches, or the share that is ignored follows the data. Either may have another cause
    (texts without padding, prompts, a share that is drawn for each batch): both show padding.
    """
    main = cross_entropy_beside(facts, objective)
    if main is None or not counts_ignored_of(objective, main):
        return None
    smoothing = objective.kind == SMOOTHING
    if smoothing and shares_weight(facts, main, objective):
        return Diagnosis("smoothing", objective=objective)
    before = [(c, b) for c in past for b in c.beside if b.objective == objective.name]
    if not all(b.all_of_them for _, b in before):
        return None
    ranks = facts.run.world_size
    shares = [_Share(b.counted, b.positions, c.micro_batches * ranks) for c, b in before]
    shares += _shares_now(main)
    sizes = [share.size / share.micro_batches for share in shares]
    lengths_differ, is_drawn = _is_ragged(sizes), _may_be_drawn(shares)
    if smoothing:
        if lengths_differ and not is_drawn:
            return Diagnosis("smoothing", objective=objective)
        return Diagnosis("all_positions", SMOOTHED, objective)
    padded = lengths_differ or not is_drawn
    return Diagnosis("all_positions", DIVERGENCE, objective) if padded else None


def constant_beside_padding(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> float:
    """What multiplies a loss that leaves out the padding, which divides it nevertheless; or 0.

    It leaves out as many elements as the main cross entropy ignores targets, and is divided by all
    of them in the last windows. Of batches of one size that is a constant divisor; a mask that is
    drawn, or has a constant share, gives the loss its weight on average.
    """
    constant = constant_beside(facts, objective)
    shares = list(_shares_now(objective))
    if not constant or all(share.counted == share.size for share in shares):
        return 0.0
    near = Near(constant, 2 * facts.tolerance)
    for closed in reversed(past):
        alike = (b for b in closed.beside if b.objective == objective.name and near(b.constant))
        each = next(alike, None)
        if each is None:
            break
        micro_batches = closed.micro_batches * facts.run.world_size
        shares.insert(0, _Share(each.counted, each.positions, micro_batches))
    ragged = _is_ragged([share.size / share.micro_batches for share in shares])
    return constant if ragged and not _may_be_drawn(shares) else 0.0


def _outer_weight(term: WeightedTerm) -> float:
    """The weight that the outermost reduction gives an element, in the applied gradient."""
    return abs(number(term.loss_term.element_weight) or 0.0) * term.factor


def _is_constant(shares: Sequence[_Share]) -> bool:
    """Whether all shares are equal, but for the rounding of a number of elements."""
    mean = _mean(shares)
    off = [(abs(share.counted - mean * share.size), share.counted) for share in shares]
    return all(distance <= min(1.0, ROUNDED * counted) for distance, counted in off)


def _may_be_drawn(shares: Sequence[_Share]) -> bool:
    """Whether the shares may be those of a mask that is drawn for each element.

    Neighbours are compared, so that a share that drifts, as that of a confidence does, is none of
    padding.
    """
    mean, pairs = _mean(shares), list(pairwise(shares))
    variance = mean * (1 - mean)
    if variance <= 0 or not pairs:
        return True
    squares = [
        (a.counted / a.size - b.counted / b.size) ** 2 / (1 / a.size + 1 / b.size) for a, b in pairs
    ]
    return total(squares) / variance <= _greatest_by_chance(len(pairs))


def _mean(shares: Sequence[_Share]) -> float:
    return total(share.counted for share in shares) / total(share.size for share in shares)


def _greatest_by_chance(count: int) -> float:
    """What a sum of ``count`` squares of standard normal numbers hardly ever exceeds.

    By the approximation of Wilson and Hilferty.
    """
    step = 2 / (9 * count)
    return count * (1 - step + BEYOND_CHANCE * math.sqrt(step)) ** 3


def _shares_now(objective: Objective) -> Iterator[_Share]:
    for term in objective.terms:
        yield _Share(term.tokens, term.loss_term.size or term.tokens)


def _shares_before(
    facts: StepFacts, objective: Objective, past: Sequence[Closed], constant: float
) -> Iterator[_Share]:
    """Those of earlier windows, whose balance is their share if all positions divide them."""
    scale = constant * (facts.run.declared_scale or 1.0)
    for closed in wrong_windows(past):
        if closed.unit == objective.reading.unit and closed.tokens and closed.balance:
            share = closed.balance / scale
            if share < 1:
                micro_batches = closed.micro_batches * facts.run.world_size
                yield _Share(closed.tokens, closed.tokens / share, micro_batches)


def _is_padded(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> bool:
    """Whether the elements of a mean may be those of sequences of different lengths.

    In one dimension nothing is padded. Images have one size, but for the last batch of an epoch.
    """
    terms = [t.loss_term for t in objective.terms]
    if all(t.rows == t.size for t in terms):
        return False
    return _is_ragged(_all_sizes(facts, objective, past))


def _all_sizes(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> list[float]:
    """The elements of each micro-batch, and on average in each earlier window."""
    constant = constant_over_positions(facts, objective) or 1.0
    before = _shares_before(facts, objective, past, constant)
    return [*_sizes(objective), *(s.size / s.micro_batches for s in before)]


def _sizes(objective: Objective) -> list[float]:
    return [float(t.loss_term.size or t.loss_term.elements or 0) for t in objective.terms]


def _is_ragged(sizes: Sequence[float]) -> bool:
    return len({float(f"{size:.4e}") for size in sizes}) >= RAGGED
