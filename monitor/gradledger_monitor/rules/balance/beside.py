"""Losses beside a cross entropy: whether they count positions that it ignores.

A label smoothing, or the divergence of a distillation, is computed from the same log-probabilities.
If a batch is padded, it must leave out the padding as the cross entropy does. Any loss that leaves
out as many elements may still divide by all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.evidence import (
    BY_INDEX,
    SMOOTHING,
    Near,
)

_OF_ALL_CLASSES = (SMOOTHING, "KlDivergence", "SoftCrossEntropy")


class Beside(NamedTuple):
    """What a loss and the cross entropy on the same logits count in a window, over all ranks.

    ``all_of_them`` states whether the loss counts all positions of the cross entropy. ``constant``
    is what multiplies it if it counts as many, and all positions divide it; 0 otherwise.
    """

    objective: str
    counted: float  # by the cross entropy
    positions: float
    all_of_them: bool
    constant: float = 0.0


def cross_entropy_beside(facts: StepFacts, objective: Objective) -> Objective | None:
    """The cross entropy on the same logits, if the objective is a loss of all classes."""
    if not objective.kind.startswith(_OF_ALL_CLASSES):
        return None
    heads = {term.loss_term.head for term in objective.terms}
    for other in facts.objectives:
        by_index = other.kind.startswith(BY_INDEX)
        same = {term.loss_term.head for term in other.terms} == heads and None not in heads
        if by_index and same and _positions(objective).keys() == _positions(other).keys():
            return other
    return None


def beside(facts: StepFacts) -> Iterator[Beside]:
    """What each loss beside a cross entropy counts."""
    for objective in facts.objectives:
        main, constant = cross_entropy_beside(facts, objective), constant_beside(facts, objective)
        if main is None and constant:
            main = facts.objectives[0]
        if main is not None:
            counted, positions = sum(counted_by(main).values()), sum(_positions(main).values())
            all_of_them = _counts_all(objective, main)
            yield Beside(objective.name, counted, positions, all_of_them, constant)


def constant_beside(facts: StepFacts, objective: Objective) -> float:
    """What multiplies a loss that counts as many as the main cross entropy, divided by all; or 0.

    That is, the ratio of the weights of their tokens, times positions over tokens, if it is the
    same in all micro-batches. Of a loss that the tokens divide, the ratio itself is.
    """
    main, by_key = facts.objectives[0], counted_by(objective)
    is_main = main is objective or not main.kind.startswith(BY_INDEX)
    if is_main or main.reading.unit != "tokens" or by_key != counted_by(main):
        return 0.0
    positions = _positions(main)
    if positions != _positions(objective) or len(by_key) != len(main.terms):
        return 0.0
    of_main = {(t.rank, t.micro_batch): t.weight for t in main.terms}
    if len(by_key) != len(objective.terms) or not all(of_main.values()):
        return 0.0
    ratios = [
        term.weight / of_main[key] * positions[key] / by_key[key]
        for term in objective.terms
        for key in [(term.rank, term.micro_batch)]
    ]
    is_same = 0 < max(ratios) <= min(ratios) * (1 + 2 * facts.tolerance)
    return ratios[0] if is_same else 0.0


def counts_ignored_of(objective: Objective, main: Objective) -> bool:
    """Whether it counts all positions of a cross entropy, which ignores some."""
    return _counts_all(objective, main) and counted_by(main) != _positions(main)


def leaves_out_elements(objective: Objective) -> bool:
    """Whether a mask, an ignored class or the like leaves out some of its elements.

    What has no count that depends on the data leaves out a fixed share, but for the rounding to
    whole elements, as the highest half does; or as many of each row, as a slice does.
    """
    terms = objective.terms
    if all(t.loss_term.rows and t.tokens % t.loss_term.rows == 0 for t in terms):
        return False
    counts, positions = counted_by(objective), _positions(objective)
    shares = [(n / positions[at], 1 / positions[at]) for at, n in counts.items() if positions[at]]
    lowest = min((share + rounding for share, rounding in shares), default=1.0)
    return any(share - rounding >= lowest for share, rounding in shares)


def _counts_all(objective: Objective, main: Objective) -> bool:
    return counted_by(objective) == _positions(main)


def smooths_ignored(objective: Objective) -> bool:
    """Whether a smoothing by hand inside a cross entropy counts positions that this ignores."""
    terms = [term.loss_term for term in objective.terms]
    counts_all = all(term.smoothed is not None and term.smoothed == term.size for term in terms)
    return counts_all and any(term.tokens != term.size for term in terms)


def shares_weight(facts: StepFacts, main: Objective, smoothing: Objective) -> bool:
    """Whether the smoothing has the weight that the cross entropy lacks: 0.9 and 0.1.

    A regularisation towards equal probabilities leaves the cross entropy its weight, and may be
    meant for all positions. Compared are single positions, micro-batches, and the window.
    """
    of_main, of_smoothing = (
        {(t.rank, t.micro_batch): (t.weight, t.tokens * t.weight) for t in objective.terms}
        for objective in (main, smoothing)
    )
    pairs = [(of_main[key], of_smoothing[key]) for key in of_main.keys() & of_smoothing.keys()]
    whole = main.ledger.balance / (facts.run.declared_scale or 1.0)
    columns = [
        [(m[0], s[0]) for m, s in pairs],
        [(m[1], s[1]) for m, s in pairs],
        [(main.ledger.balance, smoothing.ledger.balance)],
    ]
    return any(
        share < 1 and all(m and Near(share * (1 + s / m), facts.tolerance)(1.0) for m, s in column)
        for share in (whole, abs(main.coefficient or 1.0))
        for column in columns
    )


def counted_by(objective: Objective) -> dict[tuple[int, int], float]:
    """The tokens of each micro-batch."""
    counts: dict[tuple[int, int], float] = {}
    for term in objective.terms:
        key = (term.rank, term.micro_batch)
        counts[key] = counts.get(key, 0.0) + term.tokens
    return counts


def _positions(objective: Objective) -> dict[tuple[int, int], float]:
    """All positions of each micro-batch, of which some may not count."""
    counts: dict[tuple[int, int], float] = {}
    for term in objective.terms:
        key = (term.rank, term.micro_batch)
        counts[key] = counts.get(key, 0.0) + (term.loss_term.size or term.loss_term.elements or 0)
    return counts
