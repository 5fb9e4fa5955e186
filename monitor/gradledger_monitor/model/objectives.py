"""The honest ways to read a window: which of its terms count, and in which unit.

Its main loss alone or all losses of a kind together, tokens counted or weighted by class: each is
a ``Reading`` with its own ledger. A run that honours the contract under one of them is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger_monitor.ingest.schema import Term
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.token_ledger import Ledger, Weighed, account

UNIFORM_INSIDE = 2e-3  # spread of weights inside one micro-batch that is still one weight


@dataclass
class Reading:
    """One way to read a window: which terms count, and in which unit."""

    name: str  # "main", "part", "kind" or "all"
    unit: str  # "tokens", "class_weight", "rows" or "positions"
    ledger: Ledger

    def __init__(self, name: str, unit: str, ledger: Ledger) -> None:
        self.name, self.unit, self.ledger = name, unit, ledger

    def is_fair(self, tolerance: float, scale: float) -> bool:
        """Whether the token-mean contract holds: every token alike, and a balance of ``scale``."""
        return self.is_even(tolerance) and abs(self.ledger.balance / scale - 1) <= tolerance

    def is_even(self, tolerance: float) -> bool:
        """Whether every token got the same weight."""
        return self.ledger.misallocation <= tolerance


@dataclass
class Seen(Weighed):
    """A term where it was seen: a line of the account in tokens, of which there are some."""

    of: Term
    upwards: bool  # its own weight is positive
    part: int  # which of the micro-batch's terms under this name

    def __init__(
        self,
        rank: int,
        micro_batch: int,
        term: str,
        tokens: float,
        weight: float,
        of: Term,
        upwards: bool,
        part: int,
    ) -> None:
        self.rank, self.micro_batch, self.term = rank, micro_batch, term
        self.tokens, self.weight = tokens, weight
        self.of, self.upwards, self.part = of, upwards, part


def readings(seen: list[Seen]) -> Iterator[Reading]:
    """Each term alone, all of the heaviest's kind, then everything, in every unit that fits.

    The first, wherever it can be had, is the plainest: the heaviest term's, in tokens.
    Two terms on one head are parts of one loss, or two tasks of one model: both are read. More
    than two are parts: chunks of one loss, or K forwards and one backward.
    """
    if not seen:
        return
    for name, group in _groups(seen):
        for unit in ("tokens", "class_weight", "rows", "positions"):
            reading = _reading(name, unit, group)
            if reading is not None:
                yield reading


def _groups(seen: list[Seen]) -> Iterator[tuple[str, list[Seen]]]:
    terms = _heaviest_first(seen)
    kind = terms[0].rpartition("#")[0]
    for term in terms:
        yield "main", [s for s in seen if s.term == term] if len(terms) > 1 else seen
    if max([s.part for s in seen]) == 2:
        for part in sorted({(s.term, s.part) for s in seen}):
            yield "part", [s for s in seen if (s.term, s.part) == part]
    if len(terms) > 1:
        of_kind = [s for s in seen if s.of.kind == kind]
        if len({s.term for s in of_kind}) > 1:
            yield "kind", of_kind
        if len(of_kind) < len(seen):
            yield "all", seen


def _heaviest_first(seen: list[Seen]) -> list[str]:
    first = seen[0].term
    if all(s.term == first for s in seen):
        return [first]
    totals: dict[str, float] = {}
    for s in seen:
        totals[s.term] = totals.get(s.term, 0.0) + s.tokens * s.weight
    return sorted(totals, key=lambda term: (-totals[term], term))


def _reading(name: str, unit: str, group: list[Seen]) -> Reading | None:
    lines = group if unit == "tokens" else _in_units(unit, group)
    ledger = account(lines) if lines else None
    return None if ledger is None else Reading(name, unit, ledger)


def _in_units(unit: str, group: list[Seen]) -> list[Weighed]:
    """The lines in units other than tokens; none where a term has no such unit."""
    lines = []
    for s in group:
        units, weight = _units(s.of, unit), s.weight
        if units is None or not 0 < units < math.inf:  # class weights may be any number
            return []
        # the mean's total weight is fixed: more units, less each
        if units != s.tokens and s.of.reduction == "mean":
            weight *= s.tokens / units
        lines.append(Weighed(s.rank, s.micro_batch, s.term, units, weight))
    return lines


def _units(term: Term, unit: str) -> float | None:
    """How many of a unit the term holds; None where that unit cannot be meant.

    A class-weighted loss may divide by the sum of its class weights. A summed loss over elements
    (pixels, classes) may be meant per row or per position: its author chose the divisor.
    """
    if unit == "class_weight":
        return number(term.class_weight)
    if term.reduction == "mean" or term.kind.startswith("NllLoss"):
        return None
    return term.rows if unit == "rows" else term.positions


def spread(term: Term) -> bool:
    """Whether the loss gave the term's tokens different weights."""
    least, most, weight = number(term.weight_min), number(term.weight_max), number(term.weight)
    if least is None or most is None or weight is None:
        return False
    return least < most * (1 - UNIFORM_INSIDE) or abs(weight) < most * (1 - UNIFORM_INSIDE)
