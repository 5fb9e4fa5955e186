"""The objectives that a window may have been meant to optimise, each with its own ledger.

A script does not declare which of its losses the token-mean contract is about, nor what its author
divides by. So a window has several candidate objectives: the main loss term alone, all terms of a
kind, or all terms together; counted in tokens, class weights, rows or positions. If the contract
holds for one of them, the run is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.token_ledger import Ledger, WeightedTokens, build_ledger


@dataclass
class Objective:
    """One candidate: which of the window's terms count, and in which unit."""

    name: str  # "main", "part", "kind" or "all"
    unit: str  # "tokens", "class_weight", "rows" or "positions"
    ledger: Ledger

    def __init__(self, name: str, unit: str, ledger: Ledger) -> None:
        self.name, self.unit, self.ledger = name, unit, ledger

    def is_fair(self, tolerance: float, scale: float) -> bool:
        """Whether the token-mean contract holds: d = 0 and B = ``scale``."""
        return self.is_even(tolerance) and abs(self.ledger.balance / scale - 1) <= tolerance

    def is_even(self, tolerance: float) -> bool:
        """Whether every token has the same weight: d = 0."""
        return self.ledger.misallocation <= tolerance


@dataclass
class WeightedTerm(WeightedTokens):
    """A loss term of one micro-batch of one rank: a line of the ledger, with at least one token."""

    loss_term: Term
    positive: bool  # sign of the term's own weight; ``weight`` is its absolute value
    part: int  # number of the term among those of this name in the micro-batch, from 1

    def __init__(
        self,
        rank: int,
        micro_batch: int,
        term: str,
        tokens: float,
        weight: float,
        loss_term: Term,
        positive: bool,
        part: int,
    ) -> None:
        self.rank, self.micro_batch, self.term = rank, micro_batch, term
        self.tokens, self.weight = tokens, weight
        self.loss_term, self.positive, self.part = loss_term, positive, part


def candidate_objectives(terms: list[WeightedTerm]) -> Iterator[Objective]:
    """Each term alone, all terms of the heaviest one's kind, then all; each in every valid unit.

    The heaviest term in tokens comes first, if it has a ledger. Two terms on one head are parts of
    one loss, or two tasks of one model, so both candidates are produced. More than two are parts:
    chunks of one loss, or K forwards and one backward.
    """
    if not terms:
        return
    for name, group in _groups(terms):
        for unit in _possible_units(group):
            objective = _objective(name, unit, group)
            if objective is not None:
                yield objective


def _possible_units(group: list[WeightedTerm]) -> tuple[str, ...]:
    """The units that the author may have meant, the most likely first.

    A class-weighted loss is a sum over class weights: PyTorch divides its mean by their sum.
    """
    if all(t.loss_term.class_weight for t in group):
        return "class_weight", "tokens", "rows", "positions"
    return "tokens", "class_weight", "rows", "positions"


def _groups(terms: list[WeightedTerm]) -> Iterator[tuple[str, list[WeightedTerm]]]:
    names = _heaviest_first(terms)
    kind = names[0].rpartition("#")[0]
    for name in names:
        yield "main", [t for t in terms if t.term == name] if len(names) > 1 else terms
    if max([t.part for t in terms]) == 2:
        for part in sorted({(t.term, t.part) for t in terms}):
            yield "part", [t for t in terms if (t.term, t.part) == part]
    if len(names) > 1:
        of_kind = [t for t in terms if t.loss_term.kind == kind]
        if len({t.term for t in of_kind}) > 1:
            yield "kind", of_kind
        if len(of_kind) < len(terms):
            yield "all", terms


def _heaviest_first(terms: list[WeightedTerm]) -> list[str]:
    """Names of the terms by gradient weight, sum of n * w, descending."""
    first = terms[0].term
    if all(t.term == first for t in terms):
        return [first]
    totals: dict[str, float] = {}
    for t in terms:
        totals[t.term] = totals.get(t.term, 0.0) + t.tokens * t.weight
    return sorted(totals, key=lambda name: (-totals[name], name))


def _objective(name: str, unit: str, group: list[WeightedTerm]) -> Objective | None:
    lines = group if unit == "tokens" else _in_units(unit, group)
    ledger = build_ledger(lines) if lines else None
    return None if ledger is None else Objective(name, unit, ledger)


def _in_units(unit: str, group: list[WeightedTerm]) -> list[WeightedTokens]:
    """The lines in units other than tokens; none if a term has no such unit."""
    lines = []
    for t in group:
        units, weight = _units(t.loss_term, unit), t.weight
        if units is None or not 0 < units < math.inf:  # class weights may be any number
            return []
        # a mean has a fixed total weight: with more units, each has less
        if units != t.tokens and t.loss_term.reduction == "mean":
            weight *= t.tokens / units
        lines.append(WeightedTokens(t.rank, t.micro_batch, t.term, units, weight))
    return lines


def _units(term: Term, unit: str) -> float | None:
    """How many of a unit the term has; None if its author cannot have meant that unit.

    A class-weighted loss may divide by the sum of its class weights. A summed loss over elements
    (pixels, classes) may be meant per row or per position: its author chose the divisor.
    """
    if unit == "class_weight":
        return number(term.class_weight)
    if term.reduction == "mean" or term.kind.startswith("NllLoss"):
        return None
    return term.rows if unit == "rows" else term.positions


def weights_vary(term: Term) -> bool:
    """Whether the loss itself gave the term's tokens different weights."""
    least, most, weight = number(term.weight_min), number(term.weight_max), number(term.weight)
    if least is None or most is None or weight is None:
        return False
    bound = most * (1 - tolerances.INSIDE)
    return least < bound or abs(weight) < bound
