"""The ledger of one optimizer step as rows: the tokens and the gradient share of each loss term."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from gradledger_monitor.model.chart_metrics import chart_metrics
from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.ingest.schema import MicroBatch, StepRecord, Term
    from gradledger_monitor.model.step_facts import StepFacts
    from gradledger_monitor.model.token_ledger import Entry

MOST_ROWS = 512
HALF_WIDTH = 40  # of the bar of a relative weight, in pixels
_DOUBLINGS = 2  # at which a bar is full: 4 times too much or too little
_TOLERANCE = 0.01  # relative weights this close to 1 differ by rounding


@dataclass(frozen=True)
class Bar:
    """A horizontal bar, left or right of the middle."""

    x: float
    width: float


@dataclass(frozen=True)
class Row:
    """One loss term of one micro-batch of one rank."""

    rank: int
    micro_batch: int
    label: str
    term: str
    reduction: str
    tokens: float | None
    token_share: float
    gradient_share: float
    weight: float | None
    relative: float | None
    loss: float | None
    collectives: int | None
    missing: str

    @property
    def deviation(self) -> str:
        """Whether its tokens count too much (over), too little (under) or right (fair)."""
        if self.relative is None or abs(self.relative - 1) <= _TOLERANCE:
            return "fair"
        return "over" if self.relative > 1 else "under"

    @property
    def bar(self) -> Bar:
        """The bar of its relative weight, to the right of the middle if it is above 1."""
        assert self.relative is not None
        doublings = _doublings(self.relative)
        width = min(abs(doublings) / _DOUBLINGS, 1) * HALF_WIDTH
        return Bar(HALF_WIDTH if doublings > 0 else HALF_WIDTH - width, width)


def _doublings(relative: float) -> float:
    """How often 1 must be doubled to reach a relative weight, at least ``-_DOUBLINGS``."""
    return math.log2(max(abs(relative), 2.0**-_DOUBLINGS))


def rows(facts: StepFacts) -> list[Row]:
    """All rows of a step, rank by rank. Without a ledger, the shares are zero."""
    ledger = facts.ledger
    entries = {(e.rank, e.micro_batch, e.term): e for e in (ledger.entries if ledger else ())}
    total = ledger.tokens if ledger else 0.0
    terms = list(_located_terms(facts.records))
    several = any(located.occurrence for located in terms)
    return [
        _row(located, entries.get(located.key), total, located.label(facts, several))
        for located in terms
    ]


@dataclass(frozen=True)
class _LocatedTerm:
    """A term with its position; ``occurrence`` counts the terms before it in its micro-batch."""

    rank: int
    index: int
    batch: MicroBatch
    term: Term | None
    name: str
    occurrence: int

    @property
    def key(self) -> tuple[int, int, str]:
        return self.rank, self.index, self.name

    def label(self, facts: StepFacts, several: bool) -> str:
        rank = f"rank {self.rank} · " if len(facts.records) > 1 else ""
        return f"{rank}{self.index + 1}" + (f" {short_term_name(self.name)}" if several else "")


def _located_terms(records: dict[int, StepRecord]) -> Iterator[_LocatedTerm]:
    for rank, record in sorted(records.items()):
        for index, batch in enumerate(record.micro_batches):
            kinds: Counter[str] = Counter()
            for occurrence, term in enumerate(batch.terms or [None]):
                kind = term.kind if term else ""
                yield _LocatedTerm(rank, index, batch, term, f"{kind}#{kinds[kind]}", occurrence)
                kinds[kind] += 1


def _row(located: _LocatedTerm, entry: Entry | None, total: float, label: str) -> Row:
    term = located.term
    tokens = entry.tokens if entry else term.tokens if term else None
    return Row(
        rank=located.rank,
        micro_batch=located.index + 1,
        label=label,
        term=short_term_name(located.name) if term else formatting.NOT_MEASURED,
        reduction=term.reduction if term else formatting.NOT_MEASURED,
        tokens=tokens,
        token_share=entry.tokens / total if entry else 0.0,
        gradient_share=entry.share if entry else 0.0,
        weight=entry.weight if entry else None,
        relative=entry.relative if entry else None,
        loss=_loss(located.batch),
        collectives=located.batch.collectives,
        missing=_missing(located.batch, term),
    )


def short_term_name(name: str) -> str:
    """``NllLossBackward0#0`` without the affixes: ``NllLoss``; the second one is ``NllLoss 2``."""
    kind, _, occurrence = name.rpartition("#")  # the kind may contain the character, too
    if not occurrence.isdecimal():
        kind, occurrence = name, "0"
    kind = kind.removesuffix("0").removesuffix("Backward")
    return kind if occurrence == "0" else f"{kind} {int(occurrence) + 1}"


def _loss(batch: MicroBatch) -> float | None:
    if batch.loss is None:
        return None
    return float(batch.loss) / (float(batch.scale or 1) or 1.0)


def _missing(batch: MicroBatch, term: Term | None) -> str:
    reasons = {**batch.missing, **(term.missing if term else {})}
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def worst_rows(rows: list[Row]) -> list[Row]:
    """All rows, or the ``MOST_ROWS`` with the largest difference between tokens and gradient."""
    if len(rows) <= MOST_ROWS:
        return rows
    return sorted(rows, key=_share_difference, reverse=True)[:MOST_ROWS]


def _share_difference(row: Row) -> float:
    return abs(row.gradient_share - row.token_share)


@dataclass(frozen=True)
class StepSummary:
    """A step in one sentence; ``tone`` is the verdict whose colour it has."""

    sentence: str
    tone: str


def summarize(rows: list[Row], facts: StepFacts) -> StepSummary:
    """What the ledger of a step shows: the largest difference first."""
    ledger = facts.ledger
    if ledger is None:
        reason = facts.unmeasured or "the hooks observed no loss term"
        return StepSummary(f"The weights of this step were not measured: {reason}.", "incomplete")
    if ledger.misallocation > facts.tolerance:
        tone = "broken" if ledger.misallocation >= 0.05 else "suspect"
        return StepSummary(_worst_row_sentence(rows), tone)
    balance = chart_metrics(facts)["balance"]
    if balance is not None and abs(balance - 1) > facts.tolerance:
        return StepSummary(
            "All tokens of this step have equal weight, but their sum is wrong: "
            f"B = {formatting.figure(balance)} instead of 1.",
            "suspect",
        )
    return StepSummary("All tokens of this step have equal weight.", "balanced")


def _worst_row_sentence(rows: list[Row]) -> str:
    row = max(rows, key=_share_difference)
    rank = f" of rank {row.rank}" if len({other.rank for other in rows}) > 1 else ""
    tokens, gradient = formatting.percent(row.token_share), formatting.percent(row.gradient_share)
    return (
        f"Micro-batch {row.micro_batch}{rank} has {tokens} of the tokens and {gradient} of the "
        f"gradient: {formatting.times(row.relative)} its correct weight."
    )


# ---------------------------------------------------------------- ranks x micro-batches


@dataclass(frozen=True)
class Cell:
    """One micro-batch of one rank in the grid of a step."""

    tokens: float | None
    relative: float | None
    collectives: int | None

    @property
    def shade(self) -> str:
        """The CSS class for its relative weight: one of seven shades, or none."""
        if self.relative is None:
            return "none"
        if abs(self.relative - 1) <= _TOLERANCE:
            return "fair"
        doublings = abs(_doublings(self.relative))
        depth = 1 if doublings < 0.4 else 2 if doublings < 1.2 else 3
        return f"{'over' if self.relative > 1 else 'under'}-{depth}"


MOST_CELLS = 1024


def grid(rows: list[Row], facts: StepFacts) -> dict[int, list[Cell]] | None:
    """The cells by rank; None without a ledger, for a single cell, and above ``MOST_CELLS``."""
    cells: dict[int, list[Cell]] = {}
    for (rank, _), group in groupby(rows, key=lambda row: (row.rank, row.micro_batch)):
        cells.setdefault(rank, []).append(_cell(list(group)))
    number = sum(map(len, cells.values()))
    return cells if facts.ledger is not None and 1 < number <= MOST_CELLS else None


def _cell(rows: list[Row]) -> Cell:
    tokens = [row.tokens for row in rows if row.tokens is not None]
    token_share = sum(row.token_share for row in rows)
    gradient_share = sum(row.gradient_share for row in rows)
    relative = gradient_share / token_share if token_share else None
    return Cell(sum(tokens) if tokens else None, relative, rows[0].collectives)
