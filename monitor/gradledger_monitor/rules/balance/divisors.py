"""What divides micro-batches besides K: numbers, such as of boxes, or their own count."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradledger_monitor.model.losses.names import tokens_by_loss
from gradledger_monitor.model.losses.term_weights import outermost_constant
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.readings import WeightedTerm
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT
from gradledger_monitor.rules.balance.after_backward import is_left_by_loop
from gradledger_monitor.rules.balance.episodes import may_be_of_episodes
from gradledger_monitor.rules.balance.evidence import (
    BY_INDEX,
    SINGLE,
    Near,
    has_one_term_in_each,
    is_bare_reduction,
    is_divided_by,
    is_round,
    is_undivided_alone,
    reductions,
    weight_of_elements,
)
from gradledger_monitor.rules.balance.patterns import (
    FAIR,
    ONE_MORE,
    Closed,
    Diagnosis,
    wrong_windows,
)
from gradledger_monitor.rules.number_text import significant

MEAN_OF_ALL = "Each micro-batch is divided by the number of all its elements, and by nothing else"
MEAN_OF_SUMS = "Each micro-batch is a mean of sums, and nothing divides by K"
MEAN_OF_LOSSES = "Each micro-batch is a mean of means, and nothing divides by K"
DISCARDED = "the loss is divided by all micro-batches or their tokens, and some were discarded"
FEWEST_BEFORE = 2  # windows that show that a divisor stays the same
LEAST = 1e-6  # balance of a window that a number of micro-batches divides
DISTINCT = 3  # divisors of micro-batches, which are then no count of a window
SUM_OF_MEANS = (
    "Each micro-batch adds up {0} means, and each of them has a balance of 1, as the losses of {0} "
    "models, heads or samples"
)
AS_MANY_MEANS = (
    "each micro-batch adds up as many means as the window has micro-batches, divided by that "
    "number: if they are of several models or heads, K divides the loss, and scale= with that "
    "number declares it; if the division averages them, none by K is left"
)
K_OR_COUNT = (
    "{0} alone divides each micro-batch, which is K and a count of its elements: if it is the "
    "count, the division by K is missing; if it is K, each micro-batch is a sum; if that is "
    "intended, declare scale={0}"
)
MAY_UNDO_K = (
    "the loss is divided by K, and multiplied by the same number, which undoes the division, or "
    "is a weight; if it is a weight, declare scale= with that number"
)
MAY_DIVIDE_TWICE = (
    "the loss is divided by K, and multiplied by 1/K, which divides it again, or is a weight; if "
    "it is a weight, declare scale= with that number"
)
DIVERGENCES = ("KlDiv", "SoftCrossEntropy")
DIVIDED_BY = "Each loss is divided by {}"
BY_ACCELERATE = "Accelerate divides each loss by {}, its gradient_accumulation_steps"
UNDIVIDED_MEANS = (
    "each micro-batch adds up several means, and nothing divides them: if they are of several "
    "models or heads, the division by K is missing; if they are of samples, the loss is a sum; "
    "declare scale= with the balance that is intended"
)


def by_discarded(facts: StepFacts, objective: Objective, balance: float) -> Diagnosis | None:
    """B = k/K, where k of K micro-batches were applied, or their share of the tokens of K."""
    zeroed, k = len(facts.discarded), facts.micro_batches_of(objective)
    lost, near = zeroed or len(facts.left_out_of_second_pass), Near(balance, facts.tolerance)
    divided = (zeroed and k > 1) or is_divided_by(objective, k + lost)  # not an error**2 * 0.5
    n = objective.ledger.tokens
    left = sum(max(tokens_by_loss(each).values(), default=0) for each in facts.discarded)
    fits = (lost and divided and near(k / (k + lost))) or (zeroed and near(n / (n + left)))
    return Diagnosis("unmeasured", DISCARDED, objective) if fits else None


def by_divisors_of_micro_batches(
    facts: StepFacts, objective: Objective, balance: float
) -> Diagnosis | None:
    """Each micro-batch is divided by another number, such as of boxes, and nothing by K.

    Whatever these numbers count of a micro-batch, it is normalised, and K of them are added. A
    larger number counts something else, such as the tokens of another window.
    """
    divisors = divisors_of_micro_batches(facts, objective)
    if divisors is None or not is_left_by_loop(facts) or may_be_of_episodes(facts, objective):
        return None
    most = [max(count or 0.0 for count in _counts_of(term)) for term in objective.terms]
    if any(divisor > count for divisor, count in zip(divisors, most, strict=True)):
        return None
    k = facts.micro_batches_of(objective)
    first, second = list(dict.fromkeys(divisors))[:2]
    evidence = (
        f"Each micro-batch is divided by another number, such as {significant(first)} and "
        f"{significant(second)}, and nothing divides by K"
    )
    return Diagnosis("missing", "", objective, k, balance / k, evidence)


def by_mean_over_all(facts: StepFacts, objective: Objective, balance: float) -> Diagnosis | None:
    """The number of all elements of each micro-batch divides it, masked ones included, and not K.

    B is K times the share of those with a weight.
    """
    if not is_mean_over_all_alone(facts, objective) or not is_left_by_loop(facts):
        return None
    k = facts.micro_batches_of(objective)
    of_losses = all((t.loss_term.elements or math.inf) < t.tokens for t in objective.terms)
    of_sums = all(map(is_sum_in_each_element, objective.terms))
    evidence = MEAN_OF_SUMS if of_sums else MEAN_OF_LOSSES if of_losses else MEAN_OF_ALL
    return Diagnosis("missing", "", objective, k, balance / k, evidence)


def by_sum_of_means(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """Each micro-batch adds up several means, as those of the models of an ensemble.

    Each of these means has a balance, as if it were alone: B over their number. If they are as many
    as the micro-batches, what divides them may be either number, until a window of another K had
    the same balance.
    """
    k, means = facts.micro_batches_of(objective), _means_in_each(objective)
    if k == 1 or means is None or facts.missing_ranks:
        return None
    single = Near(balance / means, facts.tolerance)
    divided = all(k in map(number, term.loss_term.divisors) for term in objective.terms)
    if single(k) and not divided and _are_means_alone(objective, means):
        return Diagnosis("unmeasured", UNDIVIDED_MEANS, objective)
    if not single(1.0) or not divided:
        return None
    scale = facts.run.declared_scale or 1.0
    wrong = [(c.micro_batches, (c.balance or 0.0) / scale) for c in wrong_windows(past)]
    if not all(Near(b, facts.tolerance)(balance) for _, b in wrong):
        return None
    if means == k and all(n == k for n, _ in wrong):
        return Diagnosis("unmeasured", AS_MANY_MEANS, objective)
    evidence = SUM_OF_MEANS.format(means)
    return Diagnosis("constant", objective=objective, evidence=evidence)


def by_number_beside_k(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """K - 1 or K + 1 divides the only loss, a mean, in all windows: the loop counts one off.

    Or all losses of the window. If the number is a weight, K does not divide the loss. A half is a
    weight. Or a larger number divides windows of several lengths.
    """
    k, counts = facts.micro_batches_of(objective), _counts(objective)
    if reductions(objective) != {"mean"}:
        return None
    if (divisor := _divisor_of_shorter_windows(facts, objective, balance, past)) is not None:
        evidence = DIVIDED_BY.format(divisor)
        return Diagnosis("partial", objective=objective, ratio=k / divisor, evidence=evidence)
    if k == 1:
        return None
    if not wrong_windows(past) or any(c.pattern in FAIR for c in past):
        return None
    for divisor in (k - 1, k + 1):
        written = divisor > 2 and all(is_divided_by(o, divisor) for o in facts.objectives)
        others = (facts.run.world_size, len(facts.objectives))
        if not written or divisor in counts or divisor in others:
            continue
        if _divides_all_windows(divisor, facts, k, balance, past):
            evidence = DIVIDED_BY.format(divisor)
            return Diagnosis("partial", objective=objective, ratio=k / divisor, evidence=evidence)
    return None


def _divisor_of_shorter_windows(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> int | None:
    """The number that divides each loss, if shorter windows of several lengths have B = k/m of it.

    Whether it is meant as K or as a weight, what a window weighs depends on its length.
    """
    k = facts.micro_batches_of(objective)
    divisor = round(k / balance) if balance > LEAST else 0
    lengths = {k, *(closed.micro_batches for closed in wrong_windows(past))}
    others = (*_counts(objective), facts.run.world_size, len(facts.objectives))
    if len(lengths) < 2 or max(lengths) >= divisor or divisor in others:
        return None
    shown = is_divided_by(objective, divisor)
    shown = shown and _divides_all_windows(divisor, facts, k, balance, past)
    return divisor if shown else None


def divisor_of_accelerate(facts: StepFacts, past: Sequence[Closed]) -> int | None:
    """By how many micro-batches ``accelerator.backward`` divides, if each is another batch.

    Of one batch, several losses may have a backward each, or other parts of a model the backward.
    Accelerate draws one batch ahead.
    """
    steps = facts.run.environment.get("gradient_accumulation_steps", "")
    drawn, k = facts.record.batches, len(facts.record.micro_batches)
    if not steps.isdecimal() or "Accelerator" not in facts.run.environment:
        return None
    each = [c.batches == c.micro_batches for c in wrong_windows(past)]
    shown = 2 * (sum(each) + (drawn == k)) > len(each) if each else drawn in (k, k + 1)
    return int(steps) if shown else None


def by_accelerate(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """B = k/m of means in windows of k micro-batches, and Accelerate divides each by m."""
    m, k = divisor_of_accelerate(facts, past), facts.micro_batches_of(objective)
    if m is None or k in (1, m) or facts.record.accumulating or reductions(objective) != {"mean"}:
        return None
    if not _divides_all_windows(m, facts, k, balance, past) or not is_divided_by(objective, m):
        return None
    evidence = BY_ACCELERATE.format(m)
    return Diagnosis("partial", objective=objective, ratio=k / m, evidence=evidence)


def _divides_all_windows(
    divisor: float, facts: StepFacts, k: int, balance: float, past: Sequence[Closed]
) -> bool:
    """Whether B = k/divisor in this window of k micro-batches, and so in the wrong ones before."""
    scale = facts.run.declared_scale or 1.0
    windows = [(c.micro_batches, (c.balance or 0.0) / scale) for c in wrong_windows(past)]
    return all(Near(b, facts.tolerance)(n / divisor) for n, b in [*windows, (k, balance)])


def _counts(objective: Objective) -> set[float | None]:
    """What an additional mean would divide the losses of the micro-batches by."""
    return {count for term in objective.terms for count in _counts_of(term)}


def _counts_of(term: WeightedTerm) -> set[float | None]:
    loss = term.loss_term
    return {term.tokens, loss.rows, loss.size, loss.elements}


def _means_in_each(objective: Objective) -> int | None:
    """How many means each term adds up, if that is one number, and nothing else weighs them."""
    counts = set()
    for term in objective.terms:
        loss, means = term.loss_term, term.loss_term.elements or 0
        of_several = 1 < means < term.tokens and term.tokens % means == 0
        even = Near(weight_of_elements(term), WEIGHT)(term.tokens * term.weight)
        if not of_several or not even or loss.coefficient is not None or loss.nonlinear:
            return None
        counts.add(means)
    single = len(counts) == 1 and not objective.weighted_inside
    return counts.pop() if single else None


def _are_means_alone(objective: Objective, means: int) -> bool:
    """Whether nothing but the tokens of each mean divides it."""
    for term in objective.terms:
        divisors = {number(divisor) for divisor in term.loss_term.divisors}
        if not divisors <= {term.tokens / means}:
            return False
    return True


def is_one_whole_mean(objective: Objective) -> bool:
    """Whether the window has one term of it, a mean that nothing divides: it has no K to divide by.

    What else weighs it, such as a weight that the model learns, is a factor.
    """
    alone = is_undivided_alone(objective, with_coefficient=True)
    return len(objective.terms) == 1 and reductions(objective) == {"mean"} and alone


def divisors_of_micro_batches(facts: StepFacts, objective: Objective) -> list[float] | None:
    """The whole numbers that divide the micro-batches, if they differ and nothing contains K.

    None if they have too few different numbers, which may be the count of a window, or if all are
    multiples of K. Besides, the number of losses of this kind may divide each.
    """
    k = facts.micro_batches_of(objective)
    losses = sum(o.kind == objective.kind for o in facts.objectives)
    coefficient = objective.coefficient
    single = k > 1 and has_one_term_in_each(objective, k)
    if not single or facts.run.world_size > 1 or "mean" in reductions(objective):
        return None
    weight = abs(coefficient or 1.0)
    if is_round(weight * k) and not (is_round(weight) and weight >= 1):
        return None
    divisors = []
    for term in objective.terms:
        own = [number(d) or 0.0 for d in term.loss_term.divisors]
        own = [d for d in own if d != losses or len(own) == 1]
        plain = len(own) == 1 and own[0] >= 1 and own[0] % 1 == 0
        if not plain:
            return None
        divisors += own
    distinct, multiples = len(set(divisors)), all(d % k == 0 for d in divisors)
    return None if distinct < min(k, DISTINCT) or multiples else divisors


def is_mean_over_all_alone(facts: StepFacts, objective: Objective) -> bool:
    """Whether the number of all elements of each micro-batch divides it, and nothing else.

    Masked ones included. A constant is then a part of each element, below the outermost reduction.
    """
    k = facts.micro_batches_of(objective)
    if is_divided_by_k_itself(objective, k):
        return False
    for term in objective.terms:
        loss = term.loss_term
        divisors = [number(divisor) for divisor in loss.divisors]
        by_one = loss.undivided is False and not divisors
        by_size = divisors == [loss.size] and loss.reduction == "none"  # some are selected below
        by_elements = by_one or by_size or divisors == [loss.elements]
        alone = loss.undivided or (by_elements and loss.coefficient is None)
        count = (loss.size or 0) / (loss.elements or math.inf) if by_size else 1.0
        weight = weight_of_elements(term) * count * facts.ranks_divisor
        whole = Near(weight, facts.tolerance)(1.0)
        if not alone or not whole or loss.nonlinear or loss.elements == 1:
            return False
    return k > 1 and has_one_term_in_each(objective, k)


def is_divided_by_k_itself(objective: Objective, k: int) -> bool:
    """Whether K alone divides a bare reduction, whose elements have an unknown meaning.

    Those of a function of a cross entropy are tokens: their number divides it.
    """
    of_tokens = any((t.loss_term.of or "").startswith(BY_INDEX) for t in objective.terms)
    return is_bare_reduction(objective) and is_divided_by(objective, k) and not of_tokens


def by_k_or_count(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """One number divides each micro-batch: its count, so that no K does, or K.

    The count may be that of the features of a layer, as of their standard deviations. A window with
    another K, or other counts, shows which it is; the number may be the K of another window.
    """
    k = facts.micro_batches_of(objective)
    if k == 1 or not Near(balance, facts.tolerance)(k):
        return None
    for each in sorted({k, *(closed.micro_batches for closed in wrong_windows(past))}):
        counted = all(each in _counts_of(term) for term in objective.terms)
        if counted and is_divided_by_k_itself(objective, each):
            return Diagnosis("unmeasured", K_OR_COUNT.format(each), objective)
    return None


def by_k_and_constant(facts: StepFacts, objective: Objective) -> Diagnosis | None:
    """K divides the mean of the only loss, and the constant in front of it is K, or 1/K.

    It may undo the division, or repeat it: a weight changes nothing there. A round 1/K is a usual
    weight, and the constant of a divergence is the square of its temperature.
    """
    k, constant = facts.micro_batches_of(objective), abs(objective.coefficient or 1.0)
    alone = len(facts.objectives) == 1 and not objective.kind.startswith(DIVERGENCES)
    divided = k > 1 and is_divided_by(objective, k) and reductions(objective) == {"mean"}
    if not alone or not divided:
        return None
    if constant == k:
        return Diagnosis("unmeasured", MAY_UNDO_K, objective)
    repeats = Near(constant, SINGLE)(1 / k) and not is_round(constant)
    return Diagnosis("unmeasured", MAY_DIVIDE_TWICE, objective) if repeats else None


def is_mean_of_sums(facts: StepFacts, objective: Objective) -> bool:
    """Whether the graph shows a mean, over the window, of one sum for each sample.

    As in ``losses.sum(-1).mean()``: the loss of a sample is that of all its tokens together.
    """
    weights = 0.0
    for term in objective.terms:
        loss = term.loss_term
        if loss.reduction != "none" or not is_sum_in_each_element(term):
            return False
        weights += weight_of_elements(term)
    constant = abs(objective.coefficient or 1.0) * (facts.run.declared_scale or 1.0)
    return Near(weights, facts.tolerance)(constant)


def is_sum_of_steps(facts: StepFacts, objective: Objective) -> bool:
    """Whether the one micro-batch adds up means of equal counts, one for each step of a loop.

    As over the steps of a decoder: the loss of a sequence is that of all its steps together. Where
    a DataLoader delivered several batches, the means are theirs.
    """
    terms, counts = objective.terms, {term.tokens for term in objective.terms}
    if (facts.record.batches or 1) > 1:
        return False
    if facts.micro_batches_of(objective) != 1 or facts.run.world_size > 1 or len(counts) != 1:
        return False
    constant = abs(objective.coefficient or 1.0) * (facts.run.declared_scale or 1.0)
    near = Near(constant, facts.tolerance)
    means = all(t.loss_term.reduction == "mean" and near(t.tokens * t.weight) for t in terms)
    return len(terms) > 1 and means


def is_sum_in_each_element(term: WeightedTerm) -> bool:
    """Whether each element of the outermost reduction is a sum of several tokens, and no mean.

    Each token then weighs what its element does.
    """
    element = abs(number(term.loss_term.element_weight) or 0.0) * term.factor
    return 0 < (term.loss_term.elements or 0) < term.tokens and Near(element, WEIGHT)(term.weight)


def by_written_divisor(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """B is the inverse of a written divisor that is no whole number, times the constant.

    As the scale in ``softplus(scale * x).mean() / scale``: it counts nothing, so it is a weight. A
    divisor that follows from the data changes from window to window.
    """
    weights = set()
    for term in objective.terms:
        divisors = [number(divisor) or 0.0 for divisor in term.loss_term.divisors]
        weights.add(tuple(divisor for divisor in divisors if divisor % 1))
    own = weights.pop() if len(weights) == 1 else ()
    weight = abs(objective.coefficient or 1.0) / math.prod(own)
    if not own or not Near(balance, facts.tolerance)(weight):
        return None
    wrong = [closed.balance or 0.0 for closed in wrong_windows(past)]
    if not all(map(Near(balance * (facts.run.declared_scale or 1.0), facts.tolerance), wrong)):
        return None
    if len(wrong) < FEWEST_BEFORE:
        return Diagnosis("pending", ONE_MORE, objective)
    return Diagnosis("coefficient", objective=objective)


def weighs_its_constant(facts: StepFacts, objective: Objective) -> bool:
    """Whether each micro-batch weighs the constant in front of it: its own count alone divides it.

    Of as many elements as micro-batches, the count may be K.
    """
    k, constant = facts.micro_batches_of(objective), objective.coefficient
    if constant is None and any(t.loss_term.coefficient is not None for t in objective.terms):
        return False
    own = all(_is_divided_by_its_count_alone(term, k) for term in objective.terms)
    if objective.is_penalty or not own or not has_one_term_in_each(objective, k):
        return False
    factor = facts.all_reduce_factor or 1 / facts.ranks_divisor
    whole = abs(constant or 1.0) * (facts.run.declared_scale or 1.0) * factor
    totals = objective.ledger.weights_of_micro_batches()
    return all(Near(total, facts.tolerance)(whole) for total in totals)


def is_mean_of_sums_alone(facts: StepFacts, objective: Objective) -> bool:
    """Whether each micro-batch weighs its outermost constant, as a mean over rows of sums does.

    As the divergence of a VAE, whose constant may change from window to window. Nothing but the
    count of the rows divides it.
    """
    k, terms = facts.micro_batches_of(objective), objective.terms
    factor = (facts.run.declared_scale or 1.0) * (
        facts.all_reduce_factor or 1 / facts.ranks_divisor
    )
    whole = abs(outer_constant(objective) or 1.0) * factor
    single = not objective.is_penalty and has_one_term_in_each(objective, k)
    return single and all(
        0 < (t.loss_term.elements or 0) < t.tokens
        and _is_divided_by_its_count_alone(t, k)
        and Near(weight_of_elements(t), facts.tolerance)(whole)
        for t in terms
    )


def _is_divided_by_its_count_alone(term: WeightedTerm, k: int) -> bool:
    loss = term.loss_term
    divisors = [number(divisor) or 0.0 for divisor in loss.divisors]
    if loss.reduction == "mean" or loss.kind.startswith("MeanBackward"):
        return bool(loss.undivided) and not divisors
    counts = _counts_of(term) - {None, k}
    return len(divisors) == 1 and divisors[0] in counts


def outer_constant(objective: Objective) -> float | None:
    """The outermost constant in front of the loss of the first micro-batch."""
    return outermost_constant(objective.terms[0].loss_term)


def are_shares(objectives: Sequence[Objective], k: int) -> bool:
    """Whether the outermost constants of several losses add up to 1, as ``a`` and ``1 - a`` do.

    They then contain no 1/K. Equal ones of K losses may be one factor of their sum, which is 1/K.
    """
    outer = [abs(outer_constant(o) or 1.0) for o in objectives if not o.is_penalty]
    may_be_k = len(outer) in (1, k) and Near(max(outer), SINGLE)(min(outer))
    return not may_be_k and Near(math.fsum(outer), SINGLE)(1.0)
