"""The ledger of one optimizer step as rows: what each loss term held and what it got."""

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
HALF = 40  # pixels of the lean on either side
_DOUBLINGS = 2
_FAIR = 0.01  # relative weights this close to 1 are rounding


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
    def lean(self) -> str:
        """Whether its tokens count too much, too little or right."""
        if self.relative is None or abs(self.relative - 1) <= _FAIR:
            return "fair"
        return "over" if self.relative > 1 else "under"

    @property
    def bar(self) -> Bar:
        """Where the bar of its lean lies: full at four times too much or too little."""
        assert self.relative is not None
        doublings = math.log2(max(abs(self.relative), 2.0**-_DOUBLINGS))
        reach = min(abs(doublings) / _DOUBLINGS, 1) * HALF
        return Bar(HALF if doublings > 0 else HALF - reach, reach)


def rows(facts: StepFacts) -> list[Row]:
    """All rows of a step, rank by rank; shares are zero where the ledger could not be drawn up."""
    ledger = facts.ledger
    entries = {(e.rank, e.micro_batch, e.term): e for e in (ledger.entries if ledger else ())}
    total = ledger.tokens if ledger else 0.0
    found = list(_terms(facts.records))
    several = any(place.occurrence for place in found)
    return [
        _row(place, entries.get(place.key), total, place.label(facts, several)) for place in found
    ]


@dataclass(frozen=True)
class _Place:
    """A term where it was seen; ``occurrence`` counts the terms before it in its micro-batch."""

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


def _terms(records: dict[int, StepRecord]) -> Iterator[_Place]:
    for rank, record in sorted(records.items()):
        for index, batch in enumerate(record.micro_batches):
            kinds: Counter[str] = Counter()
            for occurrence, term in enumerate(batch.terms or [None]):
                kind = term.kind if term else ""
                yield _Place(rank, index, batch, term, f"{kind}#{kinds[kind]}", occurrence)
                kinds[kind] += 1


def _row(place: _Place, entry: Entry | None, total: float, label: str) -> Row:
    term = place.term
    tokens = entry.tokens if entry else term.tokens if term else None
    return Row(
        rank=place.rank,
        micro_batch=place.index + 1,
        label=label,
        term=short_term_name(place.name) if term else formatting.NOT_MEASURED,
        reduction=term.reduction if term else formatting.NOT_MEASURED,
        tokens=tokens,
        token_share=entry.tokens / total if entry else 0.0,
        gradient_share=entry.share if entry else 0.0,
        weight=entry.weight if entry else None,
        relative=entry.relative if entry else None,
        loss=_loss(place.batch),
        collectives=place.batch.collectives,
        missing=_missing(place.batch, term),
    )


def short_term_name(name: str) -> str:
    """``NllLossBackward0#0`` as people say it: ``NllLoss``; the second is ``NllLoss 2``."""
    kind, _, occurrence = name.rpartition("#")  # a kind may have the sign itself
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


def worst_rows(account: list[Row]) -> list[Row]:
    """All rows while a person can read them; beyond that those with the largest injustice."""
    if len(account) <= MOST_ROWS:
        return account
    return sorted(account, key=_injustice, reverse=True)[:MOST_ROWS]


def _injustice(row: Row) -> float:
    return abs(row.gradient_share - row.token_share)


@dataclass(frozen=True)
class StepSummary:
    """A step in one sentence, and the tone in which it is said."""

    sentence: str
    tone: str


def summarize(account: list[Row], facts: StepFacts) -> StepSummary:
    """The worst injustice of a step, in words."""
    ledger = facts.ledger
    if ledger is None:
        why = facts.unmeasured or "no loss term was seen"
        return StepSummary(f"The weights of this step were not measured: {why}.", "incomplete")
    if ledger.misallocation > facts.tolerance:
        return StepSummary(
            _unequal(account), "broken" if ledger.misallocation >= 0.05 else "suspect"
        )
    balance = chart_metrics(facts)["balance"]
    if balance is not None and abs(balance - 1) > facts.tolerance:
        total = f"B = {formatting.figure(balance)} instead of 1"
        return StepSummary(
            f"All tokens of this step count the same, but together {total}.", "suspect"
        )
    return StepSummary("Every token of this step counts the same.", "balanced")


def _unequal(account: list[Row]) -> str:
    row = max(account, key=_injustice)
    several = len({each.rank for each in account}) > 1
    place = f"Micro-batch {row.micro_batch}" + (f" of rank {row.rank}" if several else "")
    held, got = formatting.percent(row.token_share), formatting.percent(row.gradient_share)
    fair = f"{formatting.times(row.relative)} its fair share"
    return f"{place} holds {held} of the tokens and got {got} of the gradient: {fair}."


# ---------------------------------------------------------------- ranks x micro-batches


@dataclass(frozen=True)
class Cell:
    """One micro-batch of one rank in the picture of a step."""

    tokens: float | None
    relative: float | None
    collectives: int | None

    @property
    def shade(self) -> str:
        """How far its tokens are from their fair weight, in seven shades."""
        if self.relative is None:
            return "none"
        if abs(self.relative - 1) <= _FAIR:
            return "fair"
        doublings = abs(math.log2(max(abs(self.relative), 2.0**-_DOUBLINGS)))
        depth = 1 if doublings < 0.4 else 2 if doublings < 1.2 else 3
        return f"{'over' if self.relative > 1 else 'under'}-{depth}"


MOST_CELLS = 1024


def grid(account: list[Row], facts: StepFacts) -> dict[int, list[Cell]] | None:
    """The cells by rank; None where they are too many to draw or nothing is known of them."""
    cells: dict[int, list[Cell]] = {}
    for (rank, _), rows in groupby(account, key=lambda row: (row.rank, row.micro_batch)):
        cells.setdefault(rank, []).append(_cell(list(rows)))
    several = sum(map(len, cells.values()))
    return cells if facts.ledger is not None and 1 < several <= MOST_CELLS else None


def _cell(rows: list[Row]) -> Cell:
    known = [row.tokens for row in rows if row.tokens is not None]
    held = sum(row.token_share for row in rows)
    got = sum(row.gradient_share for row in rows)
    return Cell(sum(known) if known else None, got / held if held else None, rows[0].collectives)
