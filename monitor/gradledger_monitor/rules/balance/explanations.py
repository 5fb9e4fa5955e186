"""Explains the balance of one objective: the first explanation that fits, the strongest first.

``diagnosis`` has the table of the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT
from gradledger_monitor.rules.balance.after_backward import (
    divides_own_by_ranks,
    excess_of_combination,
    is_left_by_loop,
    multiplied_later,
)
from gradledger_monitor.rules.balance.counts import FOLLOWED, SHOWN, tokens_by_index
from gradledger_monitor.rules.balance.divisors import (
    are_shares,
    by_accelerate,
    by_discarded,
    by_divisors_of_micro_batches,
    by_k_and_constant,
    by_k_or_count,
    by_mean_over_all,
    by_number_beside_k,
    by_sum_of_means,
    by_written_divisor,
    is_divided_by_k_itself,
    weighs_its_constant,
)
from gradledger_monitor.rules.balance.episodes import has_advantages_of_zero
from gradledger_monitor.rules.balance.evidence import (
    Near,
    coefficient_explains,
    has_known_unit,
    is_bare_reduction,
    is_divided_by,
    is_half_squared_error,
    is_mean,
    is_mean_by_weight,
    is_reduced_by_mean,
    is_sum,
    is_undivided_alone,
    is_undivided_coefficient,
    is_weight,
    reductions,
    without_tokens,
)
from gradledger_monitor.rules.balance.groups_of_ranks import by_group_of_ranks, by_ranks_left
from gradledger_monitor.rules.balance.history import (
    EXPLAINED,
    OTHER_DIVISOR,
    by_history,
    by_window_length,
    mean_weights,
)
from gradledger_monitor.rules.balance.masked import by_masked_elements
from gradledger_monitor.rules.balance.patterns import (
    FAIR,
    ONE_MORE,
    Closed,
    Diagnosis,
    Pattern,
    wrong_windows,
)
from gradledger_monitor.rules.balance.several_losses import are_divided_alone, by_losses_together
from gradledger_monitor.rules.number_text import significant

OF_RANKS = (
    ", as many as there are ranks. If it undoes the average over them, which is right only of a "
    "sum that the tokens of all ranks divide, the gradient is {} times too large"
)
WITHOUT_TOKENS = "micro-batches of some ranks have no tokens"
SHORT = 2  # micro-batches of a first window that may not be whole
UNEXPLAINED = ("constant", "pending")


def explain(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> Diagnosis:
    """The first explanation that fits; the order is that of the evidence, the strongest first.

    1. Fair: B = 1, unless a constant and the usual K make it 1 by chance (``by_window_length``).
       Or it would be, had no micro-batch been discarded (``by_discarded``), or had each one the
       loss of this task (``_of_sampled_task``); or no rank left a Join (``by_ranks_left``).
    2. Weights of single micro-batches (``_by_weights``). They separate what B alone does not: with
       2 tokens in 2 micro-batches, a plain sum has B = N = K = 2. Or some ranks have no tokens in
       micro-batches that the divisor counts (``_by_idle``).
    3. The last fair window (``_partial``). It shows the K that the loop divides by. B = k/K of a
       shorter window may equal 1/R or a coefficient, so this comes before both. Or the K that
       Accelerate states, where the graph shows it.
    4. The ranks (``_by_ranks``), before a coefficient: authors multiply a loss by R on purpose or
       by mistake.
    5. Coefficients (``_by_coefficient``), before K, 1/K and 1/R: a constant in front of the loss
       explains any of these numbers, and is harmless. Then groups of ranks (``groups_of_ranks``).
    6. Losses whose balances add up to 1: a mean of tasks, if each has a head; else not known.
       Or those that add up to K, if their number divides each.
    7. Another number than K divides each micro-batch, such as of its elements; or means add up.
    8. The token counts of earlier windows (``_by_earlier_count``).
    9. Bare numbers (``_by_number``): B = R, 1/R, K, 1/K; those times a known constant in front of
       the loss (``_by_number_and_coefficient``).
    10. Windows of different K (``by_window_length``): how B follows K shows a division, whatever
       constant is in front of the loss.
    11. Earlier windows (``by_history``).
    """
    balance = objective.ledger.balance / (facts.run.declared_scale or 1.0)
    if Near(balance, facts.tolerance)(1.0):
        before = {c.pattern for c in past}
        if "other_divisor" in before and not has_known_unit(objective):
            return Diagnosis("other_divisor", OTHER_DIVISOR, objective)  # B is 1 by chance
        # 2 * loss / 4, of two micro-batches
        if before in ({"coefficient"}, {"coefficient", "partial"}):
            diagnosis = by_window_length(facts, objective, balance, past)
            if diagnosis is not None and diagnosis.pattern == "partial":
                return diagnosis
        return _fair(facts, objective, past)
    return (
        by_discarded(facts, objective, balance)
        or _of_sampled_task(facts, objective, balance)
        or by_ranks_left(facts, objective, balance, past)
        or _by_weights(facts, objective, balance, past)
        or _by_idle(facts, objective)
        or _partial(facts, objective, balance, past)
        or by_accelerate(facts, objective, balance, past)
        or _by_ranks(facts, objective, balance, past)
        or _by_coefficient(facts, objective, balance, past)
        or by_group_of_ranks(facts, objective, balance)
        or by_losses_together(facts, objective)
        or _by_undivided_mean_of_losses(facts, objective, balance, past)
        or by_divisors_of_micro_batches(facts, objective, balance)
        or by_sum_of_means(facts, objective, balance, past)
        or by_k_or_count(facts, objective, balance, past)
        or by_mean_over_all(facts, objective, balance)
        or by_number_beside_k(facts, objective, balance, past)
        or _by_earlier_count(facts, objective, balance, past)
        or _by_number_and_coefficient(facts, objective, balance, past)
        or _by_number(facts, objective, balance, past)
        or by_window_length(facts, objective, balance, past)
        or by_history(facts, objective, balance, past)
    )


def _fair(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> Diagnosis:
    """Fair, unless this is the first fair window, and shows the K of others before it.

    With ``i % K == 0``, the first window holds one micro-batch. Or several means before are longer,
    and no constant that is known explains them.
    """
    k, wrong = facts.micro_batches_of(objective), wrong_windows(past)
    is_first = bool(wrong) and not any(earlier.pattern in FAIR for earlier in past)
    shorter = is_first and all(earlier.micro_batches < k for earlier in wrong)
    longer = is_first and len(wrong) > 1 and is_mean(facts, objective)
    longer &= all(c.micro_batches > k and c.pattern in UNEXPLAINED for c in wrong)
    if not (shorter or longer) or not _Explains(facts, past)(
        lambda micro_batches: micro_batches / k
    ):
        return Diagnosis("fair", objective=objective)
    ratio = wrong[-1].micro_batches / k
    return Diagnosis("partial_before", objective=objective, ratio=ratio)


def _of_sampled_task(facts: StepFacts, objective: Objective, balance: float) -> Diagnosis | None:
    """B = k/K of a mean that is in k of K micro-batches, where each has the loss of one task."""
    own, k = len({t.micro_batch for t in objective.terms}), facts.micro_batches
    tasks = [len({t.micro_batch for t in each.terms}) for each in facts.objectives]
    if own == k or len(tasks) == 1 or sum(tasks) != k or reductions(objective) != {"mean"}:
        return None
    constant = abs(objective.coefficient or 1.0)
    fair = Near(balance * k / own, facts.tolerance)(constant)
    return Diagnosis("coefficient", objective=objective) if fair else None


def _by_weights(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    if objective.reading.unit == "micro_batches":
        return None
    if (masked := by_masked_elements(facts, objective, past)) is not None:
        return masked
    constant = objective.coefficient is not None and weighs_its_constant(facts, objective)
    divided = not objective.is_undivided and coefficient_explains(facts, objective, balance)
    if divided or constant or objective.is_mean_of_an_utterance or not is_sum(facts, objective):
        return None  # T**2 in front of a mean over as many rows
    weight = objective.ledger.balance / objective.ledger.tokens
    equal = Near(weight, facts.tolerance)
    whole = equal(1.0) or equal(1 / facts.run.world_size)
    if not whole and objective.is_divided_inside_alone:
        return None  # a mean over as many utterances as there are micro-batches
    k = facts.micro_batches_of(objective)
    means = mean_weights(past)
    if not all(equal(mean if whole else mean * c.micro_batches / k) for c, mean in means):
        return None  # the divisor is a count that was 1, or K, by chance
    if not wrong_windows(past) and not objective.is_undivided:
        return Diagnosis("pending", ONE_MORE, objective)
    return Diagnosis("sum", objective=objective)


def _partial(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """B = k/K, where the last fair window held K micro-batches, and more than one."""
    k = facts.micro_batches_of(objective)
    fair = next((c for c in reversed(past) if c.pattern in FAIR), None)
    full = fair.micro_batches if fair else 1
    # a fair window of one micro-batch shows no K: its mean is right whatever K is
    if fair is None or full in (1, k) or not Near(balance, facts.tolerance)(k / full):
        return None
    if not _Explains(facts, past)(lambda micro_batches: micro_batches / full):
        return None
    drawn = facts.record.batches if fair.batches == full else None
    # of a full window: a loop that ends early draws a batch that it only looks at
    left_out = max(0, full - len(facts.record.micro_batches)) if drawn == full else 0
    return Diagnosis("partial", objective=objective, ratio=k / full, left_out=left_out)


def _by_idle(facts: StepFacts, objective: Objective) -> Diagnosis | None:
    """B = m/(K * R), of m micro-batches with tokens: the rest have none, or advantages of 0."""
    if without_tokens(facts, objective) is None:
        return None
    if has_advantages_of_zero(facts, objective):
        return Diagnosis("coefficient", objective=objective)
    return Diagnosis("constant", objective=objective, evidence=WITHOUT_TOKENS)


def _by_ranks(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """B = R of averaged gradients, unless K = R too; or the factor of the wrapper's or loop's sync.

    With K = R, B = R may also be a missing division by K: ``_by_number`` decides, unless a constant
    explains B.
    """
    ranks, near = facts.run.world_size, Near(balance, facts.tolerance)
    if facts.divisor is not None and near(ranks / facts.divisor):
        return Diagnosis("world", objective=objective, ratio=round(balance, 6))
    excess = excess_of_combination(facts)
    if excess is not None and _is_off_by(excess, facts, objective, balance, past):
        # 1/K = 1/R**2 divides a sum of means: nothing divides it by R
        return Diagnosis("world", objective=objective, ratio=ranks if near(ranks) else excess)
    k = facts.micro_batches_of(objective)
    if not (facts.averaged and facts.divisor is None and near(ranks)) or _was_fair(past, k):
        return None
    may_lack_k = k == ranks
    has_k = is_reduced_by_mean(objective) and is_divided_by(objective, k)
    if multiplied_later(facts, ranks) and (not may_lack_k or has_k):
        return Diagnosis("world", objective=objective, ratio=ranks)
    if coefficient_explains(facts, objective, balance):
        return Diagnosis("world_or_weight", objective=objective, ratio=ranks)
    elif not may_lack_k:
        world = Diagnosis("world", objective=objective, ratio=ranks)
        return _if_consistent(facts, past, world, lambda _: ranks)
    return None


def _was_fair(past: Sequence[Closed], k: int) -> bool:
    """Whether a window of as many micro-batches was fair: its constants and its ranks are right."""
    return any(closed.pattern in FAIR and closed.micro_batches == k for closed in past)


def _is_off_by(
    excess: float, facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> bool:
    """Whether every wrong balance is that number, or of means K or 1/K times that number."""
    k, near = facts.micro_batches_of(objective), Near(balance, facts.tolerance)
    explanations: list[Callable[[int], float]] = [lambda _: excess]
    shown = bool(wrong_windows(past)) and is_mean_by_weight(facts, objective, excess)
    if is_reduced_by_mean(objective) or shown:
        explanations += [lambda n: excess * n, lambda n: excess / n]
    explains = _Explains(facts, past)
    return any(near(expected(k)) and explains(expected) for expected in explanations)


def _by_coefficient(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """A constant of the loss, which may be K or 1/K, or the half of every squared error."""
    if (undecided := by_k_and_constant(facts, objective)) is not None:
        return undecided
    half = is_half_squared_error(facts, objective, balance)
    in_all = half and _Explains(facts, past, shorter=True)(lambda _: 0.5)
    written = coefficient_explains(facts, objective, balance)
    if written or in_all:
        return Diagnosis("coefficient", objective=objective)
    return by_written_divisor(facts, objective, balance, past)


def _by_undivided_mean_of_losses(
    facts: StepFacts, main: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """Of a mean of losses, as of crops, B is K: their number alone divides each.

    Not if each backward is of another task, nor of bare means, as of the outputs of critics.
    """
    losses = [objective for objective in facts.objectives if not objective.is_penalty]
    k, n = facts.micro_batches_of(main), len(losses)
    if 1 in (k, n) or n in (k, facts.run.world_size) or not are_divided_alone(losses, facts):
        return None
    named = Diagnosis("missing", "", main, k, 1 / n, f"Only their number divides {n} losses")
    is_k = Near(balance, facts.tolerance)(k / n)
    return _if_consistent(facts, past, named, lambda of: of / n) if is_k else None


def _by_earlier_count(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """The divisor is the number of tokens of the last fair window, in all windows since alone.

    Or in windows before it, too, if most have this number. The divisor of a fair window is its own
    count. Of means, equal micro-batches that are not divided have the same balance.
    """
    summed = not is_bare_reduction(objective) and "mean" not in reductions(objective)
    if not summed or not objective.reading.is_even(facts.tolerance):
        return None
    fair, since = None, [(balance, objective.ledger.tokens)]
    before: list[tuple[float, float]] = []
    for closed in reversed(past):
        if closed.pattern in FAIR:
            fair = fair or closed
        elif closed.balance is not None and closed.tokens is not None:
            measured = (closed.balance / (facts.run.declared_scale or 1.0), closed.tokens)
            (before if fair else since).append(measured)
    count = None if fair is None or fair.unit != objective.reading.unit else fair.tokens
    if not count or tokens_by_index(objective) == {count}:
        return None  # it is also the count of each micro-batch

    def is_divisor(measured: tuple[float, float]) -> bool:
        return Near(measured[0], facts.tolerance)(measured[1] / count)

    usual = 2 * sum(c.pattern in FAIR and c.tokens == count for c in past) > len(past)
    if (any(map(is_divisor, before)) and not usual) or not all(map(is_divisor, since)):
        return None  # a constant, which the count of a window equals by chance
    return Diagnosis("stale", objective=objective, ratio=balance)


def _by_number_and_coefficient(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """B is K or 1/K times the constant that the loss is multiplied by.

    A constant that looks as if it contained 1/K explains the first, and a division by the number of
    losses the second: then the numbers show nothing.
    """
    k, coefficient = facts.micro_batches_of(objective), objective.coefficient
    if (
        coefficient is None
        or not is_weight(coefficient, k)
        or k == 1
        or not is_mean(facts, objective)
    ):
        return None
    constant = abs(coefficient) or 1.0
    near = Near(balance / constant, facts.tolerance)
    losses = [o for o in facts.objectives if not o.is_penalty]
    evidence = multiplied_by(constant)
    alone = is_undivided_alone(objective, with_coefficient=True)
    undivided = constant < 1 and is_undivided_coefficient(coefficient, k) and alone
    shares = are_shares(losses, k) and weighs_its_constant(facts, objective)
    # a factor of the ranks, which undoes an average over them, contains no 1/K; Accelerate may
    # divide by 1 besides
    ranks = facts.run.world_size
    of_ranks = facts.averaged and 1 < ranks == constant
    if near(k) and (undivided or shares or (of_ranks and reductions(objective) == {"mean"})):
        evidence += OF_RANKS.format(k * ranks) if of_ranks else _as_division(constant, k)
        named = Diagnosis("missing", "", objective, k, constant, evidence)
        return _if_consistent(facts, past, named, lambda n: n * constant)
    if near(1 / k) and len(losses) != k and not is_undivided_alone(objective):
        named = Diagnosis("double", "", objective, 1 / k, constant, evidence)
        return _if_consistent(facts, past, named, lambda n: constant / n)
    return None


def multiplied_by(constant: float) -> str:
    """The evidence of a constant factor of the loss."""
    return f"{significant(constant)} is the constant that the loss is multiplied by"


def _as_division(constant: float, k: int) -> str:
    """What a constant means that may be the division itself, by a smaller number than K."""
    divisor = round(1 / constant)
    if not 2 <= divisor < k or not Near(constant, WEIGHT)(1 / divisor):
        return ""
    return (
        f". If it is the division by K, that is one by {divisor}, and the gradient is "
        f"{significant(k / divisor)} times too large"
    )


def _by_number(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """B = R or 1/R, then B = K or 1/K.

    With K = R the numbers coincide: ``_is_of_ranks`` decides, unless ranks divide by R what
    each of them computed: that may be a part of an all-reduce without effect. If a window as long
    as this one was fair, it is chance, unless nothing divides a mean any more.
    """
    k, ranks = facts.micro_batches_of(objective), facts.run.world_size
    near = Near(balance, facts.tolerance)
    undivided = reductions(objective) == {"mean"} and is_undivided_alone(objective) and near(k)
    if not undivided and _was_fair(past, k):
        return None
    usual = max([k, *[c.micro_batches for c in wrong_windows(past)]])
    numbers: list[tuple[Pattern, Callable[[int], float]]] = []
    # a factor of R that undoes the average over the ranks is no weight
    coefficient = objective.coefficient
    undoes = facts.averaged and facts.divisor is None and abs(coefficient or 0.0) == ranks
    if ranks > 1 and (k != ranks or (not undoes and _is_of_ranks(objective, past))):
        numbers += [("world", lambda _: ranks), ("world", lambda _: 1 / ranks)]
    elif ranks > 1 and divides_own_by_ranks(facts):
        # an all-reduce that the step does not wait for, or whose result is not used
        numbers.append(("world", lambda _: 1 / ranks))
    if undoes or not is_weight(coefficient, k):  # else B contains it
        if k > 1 and not is_divided_by_k_itself(objective, k):
            numbers.append(("missing", lambda n: n))
        # by the micro-batches of each window, or always by the usual K
        numbers += [("double", lambda n: 1 / n), ("double", lambda n: n / usual**2)]
    for (pattern, expected), shorter in product(numbers, (False, True)):
        if near(expected(k)):
            diagnosis = Diagnosis(pattern, objective=objective, ratio=expected(k))
            named = _if_consistent(facts, past, diagnosis, expected, shorter)
            if named is not None:
                return named
    return None


def _is_of_ranks(objective: Objective, past: Sequence[Closed]) -> bool:
    """Whether B is a number of ranks, where these are as many as micro-batches.

    A mean loss is attributed to K, unless each micro-batch is multiplied by its share. A summed
    loss is attributed to R: the usual form is a sum over N of all ranks, which DDP averages once
    more. But a window that was fair shows that the ranks are combined rightly.
    """
    shares = {number(term.loss_term.coefficient) for term in objective.terms}
    is_mean_alone = is_reduced_by_mean(objective) and len(shares) == 1
    return not is_mean_alone and not any(c.pattern in FAIR for c in past)


def _if_consistent(
    facts: StepFacts,
    past: Sequence[Closed],
    diagnosis: Diagnosis,
    expected: Callable[[int], float],
    shorter: bool = False,
) -> Diagnosis | None:
    """The diagnosis if its number explains every wrong balance before this one, too.

    Of a sum it must explain at least two: its divisor may be a count that is K times too small by
    chance (``_may_be_chance``). A mean has the right count in it. But a first window of few
    micro-batches may be a short one, whose K is known with the next: of two that 4 divides, the
    balance is 1/2, too.
    """
    assert diagnosis.objective is not None
    k = facts.micro_batches_of(diagnosis.objective)
    by_k = diagnosis.pattern == "double" or k == 1
    short = not past and diagnosis.ratio < 1 and k <= SHORT and by_k
    if not wrong_windows(past) and (short or reductions(diagnosis.objective) != {"mean"}):
        return Diagnosis("pending", ONE_MORE, diagnosis.objective)
    if diagnosis.pattern == "missing" and _may_be_chance(facts, diagnosis.objective, past):
        return Diagnosis("pending", ONE_MORE, diagnosis.objective)
    return diagnosis if _Explains(facts, past, shorter)(expected) else None


def _may_be_chance(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> bool:
    """Whether N / K divides micro-batches of unequal size, in few windows maybe by chance."""
    # a mean times its count is a sum again
    totals = objective.ledger.weights_of_micro_batches()
    if is_mean(facts, objective) and Near(max(totals), 2 * facts.tolerance)(min(totals)):
        return False
    wrong = wrong_windows(past)
    counts = {c.tokens for c in wrong} | {objective.ledger.tokens}
    return len(counts) < SHOWN and len(wrong) + 1 < FOLLOWED


class _Explains:
    """Whether a number, which may depend on K, is the balance of the last wrong windows.

    With ``shorter``, the K of this window may divide shorter ones besides, as the first one of a
    loop that steps if ``i % K == 0``. If the loop leaves the gradients of this window as they are,
    what made those of an earlier one smaller after backward is a clip, and no divisor.
    """

    def __init__(self, facts: StepFacts, past: Sequence[Closed], shorter: bool = False) -> None:
        self._facts, self._past, self._shorter = facts, past, shorter

    def __call__(self, expected: Callable[[int], float]) -> bool:
        scale, tolerance = self._facts.run.declared_scale or 1.0, self._facts.tolerance
        k, is_left = self._facts.micro_batches, is_left_by_loop(self._facts)
        for closed in wrong_windows(self._past)[-EXPLAINED:]:
            clipped = min(closed.scaled_by or 1.0, 1.0) if is_left else 1.0
            balance = (closed.balance or 0.0) / scale / clipped
            near, n = Near(balance, tolerance), closed.micro_batches or 1
            divided_by_k = self._shorter and n < k and near(expected(k) * n / k)
            if not divided_by_k and not near(expected(n)):
                return False
        return True
