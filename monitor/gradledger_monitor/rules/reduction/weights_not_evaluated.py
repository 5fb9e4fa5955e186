"""Why the weights of a loss are not evaluated: they may be meant so, or nothing shows what is."""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.losses.repeated import data_of
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.diagnosis import (
    EPISODES,
    NONLINEAR,
    OF_SEQUENCES,
    UNMATCHED,
    WEIGHTED_INSIDE,
)
from gradledger_monitor.rules.balance.episodes import may_be_of_episodes, may_be_of_tasks
from gradledger_monitor.rules.balance.evidence import (
    Near,
    divides_by_all_positions,
    has_known_unit,
    is_divided_by_a_count,
    may_have_pairs_of_lists,
    reductions,
)
from gradledger_monitor.rules.balance.several_losses import (
    FURTHER_TOKENS,
    PARTS_OR_TASKS,
    may_be_of_samples,
    may_predict_further_tokens,
)
from gradledger_monitor.rules.reduction.common import share as share_of
from gradledger_monitor.rules.rule import Window, not_applicable, not_measured

OTHER_DIVISOR = (
    "each micro-batch is divided by a number that is not the count of the elements in its graph, "
    "of which a mask may leave some out"
)
BY_DATA = (
    "micro-batches with equally many elements have different weights, which change from window to "
    "window: the loop weighs them by something else than their counts; if that is intended, "
    'declare contract="sample"'
)
BY_LOOP = (
    "the loop multiplies the loss of each micro-batch by another number, which follows none of its "
    "counts: it may be a weight of the data, such as a return; if that is intended, declare "
    'contract="sample"'
)
PAIRS = (
    "each micro-batch has as many elements as a ranked list has pairs, and equal weight: each list "
    'may count once; if it does, declare contract="sequence"'
)
OF_SAMPLES = (
    "each micro-batch adds the mean of several losses of one form, each of which is divided by its "
    'count: each may be the loss of one sample; if it is, declare contract="sample"'
)
COMPARISONS = (
    "its elements compare examples or add them up, so that equal micro-batches may have different "
    "numbers of them; each micro-batch has equal weight, which may be intended; if it is, declare "
    'contract="sample"'
)
OF_TASKS = (
    "micro-batches have different numbers of classes, and equally many samples for each class: "
    "each may be a task of few examples, which counts once; if it does, declare "
    'contract="sample"'
)
OF_ONE_BATCH = (
    "backwards of the same batch have different weights, and each batch has the same in sum"
)
ADDED_UP = f"{OF_ONE_BATCH}: they may be added up on purpose, as in adversarial training"
COUNTS_IGNORED = "its divisor counts ignored positions"
COUNTS_MASKED = "its divisor counts elements without a weight, which may be intended"
ONE_MICRO_BATCH = "there is one micro-batch, whose weight is compared with none"
LIGHT = "its weights differ, but it has little of the gradient's weight"


def why_not_evaluated(
    objective: Objective, objectives: list[Objective], window: Window, light: float
) -> Outcome | None:
    """Why the weights of an objective cannot be evaluated, or need not; None if they are.

    ``light`` is the share of the gradient below which a further loss need not.
    """
    if objective.is_unmatched:
        return not_measured(UNMATCHED)
    facts, reading = window.facts, objective.reading
    counted = objective.elements_count or objective.is_mean_of_counted(facts.tolerance)
    if objective.weighted_inside and not counted and reading.unit != "loss_weights":
        undecided = objective.may_be_mean_of_counted(facts.tolerance)
        undecided = undecided and not reading.is_even(facts.tolerance)
        return not_measured(OF_SEQUENCES) if undecided else not_applicable(WEIGHTED_INSIDE)
    if reading.of_part and not reading.is_fair(facts.tolerance, facts.intended):
        return not_measured(PARTS_OR_TASKS)
    has_unit = has_known_unit(objective)
    if len(reading.ledger.lines) == 1 and not has_unit and "mean" not in reductions(objective):
        if objective is not objectives[0] and divides_by_all_positions(facts, objective):
            return not_measured(COUNTS_MASKED)
        return not_applicable(ONE_MICRO_BATCH)  # equal weights of one are no evidence
    if reading.is_even(facts.tolerance):
        return None
    if _has_equal_batches(objective, facts):
        balance = objective.ledger.balance / (facts.run.declared_scale or 1.0)
        fair = Near(balance, facts.tolerance)(1.0)
        return not_applicable(OF_ONE_BATCH) if fair else not_measured(ADDED_UP)
    if objective.is_nonlinear:
        return not_applicable(NONLINEAR)
    if not has_unit and not is_divided_by_a_count(facts, objective):
        return not_measured(OTHER_DIVISOR)
    if _is_multiplied(objective) and not is_divided_by_a_count(facts, objective):
        return not_measured(BY_LOOP)
    if reading.is_of_means(facts.tolerance) and may_have_pairs_of_lists(objective):
        return not_measured(PAIRS)
    if reading.is_of_means(facts.tolerance) and objective.compares_examples:
        return not_measured(COMPARISONS)
    if reading.is_of_means(facts.tolerance) and may_be_of_episodes(facts, objective):
        return not_measured(EPISODES)
    if reading.is_of_means(facts.tolerance) and may_be_of_tasks(objective, window.past):
        return not_measured(OF_TASKS)
    if may_predict_further_tokens(objective, facts.tolerance):
        return not_measured(FURTHER_TOKENS)
    if may_be_of_samples(facts, objective, objectives):
        return not_measured(OF_SAMPLES)
    if objective is not objectives[0]:
        moved = reading.ledger.misallocation * share_of(objective, objectives)
        return not_applicable(LIGHT) if moved < light else None
    return None


def _has_equal_batches(objective: Objective, facts: StepFacts) -> bool:
    """Whether several backwards are of one batch, and each batch has the same weight in sum.

    The chunks of one micro-batch have one backward.
    """
    data = {
        (rank, index): data_of(micro_batch)
        for rank, applied in facts.applied_by_rank.items()
        for index, micro_batch in applied
    }
    backwards = {(term.rank, term.micro_batch) for term in objective.terms}
    batches = {(rank, data[rank, index]) for rank, index in backwards}
    if len(batches) == len(backwards) or any(of_batch is None for _, of_batch in batches):
        return False
    sums: dict[tuple[int, float | None, float], float] = {}
    for term in objective.terms:
        key = term.rank, data[term.rank, term.micro_batch], term.tokens
        sums[key] = sums.get(key, 0.0) + term.weight
    return all(map(Near(next(iter(sums.values())), facts.tolerance), sums.values()))


def _is_multiplied(objective: Objective) -> bool:
    """Whether the loop multiplies most micro-batches by a number of their own."""
    factors = [number(term.loss_term.coefficient) for term in objective.terms]
    return None not in factors and 2 * len(set(factors)) > max(len(factors), 2)
