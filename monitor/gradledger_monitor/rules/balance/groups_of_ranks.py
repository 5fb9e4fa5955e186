"""Losses that are divided, or multiplied, by what belongs to a group of ranks instead of all; or
divided by what all ranks count, and once more; or multiplied by ranks that have left a Join.

A group of ranks is a node, or a dimension of a mesh: neighbours, or every n-th rank. The gradients
are averaged over all R ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.evidence import Near
from gradledger_monitor.rules.balance.patterns import (
    FAIR_UNTIL_RANKS_LEFT,
    Closed,
    Diagnosis,
    wrong_windows,
)
from gradledger_monitor.rules.number_text import significant

RANKS_LEFT = (
    "the balance follows the number of ranks that have data left in a Join, by which DDP divides"
)


def by_group_of_ranks(facts: StepFacts, objective: Objective, balance: float) -> Diagnosis | None:
    """B is R / g, or g / R, of g ranks in a group; or 1 / R**2, or 1 / (R * K)."""
    plain = facts.averaged and facts.divisor is None and facts.all_reduce is None
    if not plain or facts.missing_ranks or len(facts.records) != facts.run.world_size:
        return None
    evidence = _counted_in_group(facts, objective) or _multiplied(facts, objective, balance)
    if evidence:
        return Diagnosis("world", "", objective, balance, 1.0, evidence)
    return _divided_again(facts, objective, balance)


def by_ranks_left(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """B is all ranks over those that have not left a Join, and it was 1 before any had.

    If it was another number in all windows before, that has its cause there; but B only follows the
    ranks, and no count.
    """
    left, active = facts.run.left, facts.run.world_size
    if not left:
        return None
    near, ratio = Near(balance, facts.tolerance), (active + left) / active
    if any(c.pattern in FAIR_UNTIL_RANKS_LEFT for c in past) and near(ratio):
        return Diagnosis("ranks_left", objective=objective, ratio=ratio)
    scale = facts.run.declared_scale or 1.0
    before = [c for c in wrong_windows(past) if c.pattern != "unmeasured"]
    follows = before and all(near((c.balance or 0.0) / scale * ratio) for c in before)
    return Diagnosis("unmeasured", RANKS_LEFT, objective) if follows else None


def _counted_in_group(facts: StepFacts, objective: Objective) -> str | None:
    """Each weight is 1 / (what the rank's group counts), and the groups count different numbers."""
    tokens = dict.fromkeys(facts.records, 0.0)
    weights: dict[int, set[float]] = {rank: set() for rank in facts.records}
    for line in objective.ledger.lines:
        if line.tokens and line.weight and line.rank in tokens:
            tokens[line.rank] += line.tokens
            weights[line.rank].add(line.weight)
    ranks, scale = list(tokens), facts.run.declared_scale or 1.0
    for size in _sizes(len(ranks)):
        for groups in _partitions(ranks, size):
            counts = [sum(tokens[rank] for rank in group) for group in groups]
            products = [
                weight * count
                for group, count in zip(groups, counts, strict=True)
                for rank in group
                for weight in weights[rank]
            ]
            fits = all(Near(product, facts.tolerance)(scale) for product in products)
            if len(set(counts)) > 1 and all(weights.values()) and fits:
                return (
                    f"each weight is 1 / (what a group of {size} ranks counts), not what all "
                    f"{len(ranks)} ranks do, over which the gradients are averaged"
                )
    return None


def _multiplied(facts: StepFacts, objective: Objective, balance: float) -> str | None:
    """What all ranks count divides the loss, and a number of ranks below R multiplies it.

    Not if the constant is a product: one of its factors may be R, and the other a weight.
    """
    ranks, multiplier = facts.run.world_size, objective.coefficient
    terms = [term.loss_term for term in objective.terms if term.tokens]
    if multiplier not in _sizes(ranks) or not Near(balance, facts.tolerance)(multiplier / ranks):
        return None
    if any(term.outer_coefficient is not None for term in terms):
        return None
    if not all(_other_divisors(facts, objective, term) is not None for term in terms):
        return None
    return (
        f"the loss is divided by what all {ranks} ranks count, over which the gradients are "
        f"averaged, and multiplied by {significant(multiplier)}, not by {ranks}: this may be the "
        f"size of a node, or of one dimension of a mesh. If {significant(balance)} is an intended "
        "weight, declare it with scale="
    )


def _divided_again(facts: StepFacts, objective: Objective, balance: float) -> Diagnosis | None:
    """What all ranks count divides the loss, and so does R or K; then the ranks are averaged."""
    ranks, k = facts.run.world_size, facts.micro_batches_of(objective)
    terms = [term.loss_term for term in objective.terms if term.tokens]
    others = [_other_divisors(facts, objective, term) for term in terms]
    again = next((each[0] for each in others if each and len(each) == 1), None)
    if again not in (ranks, k) or any(each != [again] for each in others):
        return None
    if objective.coefficient is not None or not Near(balance, facts.tolerance)(1 / ranks / again):
        return None
    counts = [name for name, n in (("ranks", ranks), ("micro-batches", k)) if n == again]
    evidence = (
        f"the loss is divided by what all {ranks} ranks count, and by {again:g}, the number of "
        f"{' or '.join(counts)}; and the ranks' gradients are averaged. The first division is "
        "enough"
    )
    ratio = balance if again == ranks else 1 / ranks
    return Diagnosis("world", "", objective, ratio, 1.0, evidence)


def _other_divisors(facts: StepFacts, objective: Objective, term: Term) -> list[float] | None:
    """The divisors of a loss beside what all ranks count; None if that does not divide it."""
    total = Near(objective.ledger.tokens, facts.tolerance)
    divisors = [number(each) or 0.0 for each in term.divisors]
    others = [each for each in divisors if not total(each)]
    return others if len(others) == len(divisors) - 1 else None


def _sizes(ranks: int) -> list[int]:
    return [size for size in range(2, ranks) if ranks % size == 0]


def _partitions(ranks: Sequence[int], size: int) -> Iterator[list[Sequence[int]]]:
    """Neighbours, and every n-th rank."""
    count = len(ranks) // size
    yield [ranks[i * size : (i + 1) * size] for i in range(count)]
    yield [ranks[i::count] for i in range(count)]
