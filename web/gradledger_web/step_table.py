"""The ledger of one optimizer step as rows: the tokens and the gradient share of each loss term."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from gradledger_monitor.rules.objective_verdicts import BALANCED
from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.ingest.schema import MicroBatch, Term
    from gradledger_monitor.model.step_facts import StepFacts
    from gradledger_monitor.model.token_ledger import Entry
    from gradledger_monitor.rules.objective_verdicts import ObjectiveVerdict

MOST_ROWS = 64
HALF_WIDTH = 40  # of the bar of a relative weight, in pixels
_DOUBLINGS = 2  # at which a bar is full: 4 times too much or too little
_TOLERANCE = 0.01  # relative weights this close to 1 differ by rounding


@dataclass(frozen=True)
class Bar:
    """A horizontal bar, left or right of the middle."""

    x: float
    width: float


@dataclass(slots=True)  # not frozen, which is slow to create: a step of 1,024 ranks has thousands
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
    alike: int = 0  # other ranks whose row is equal, in a table that shows one of them

    @property
    def deviation(self) -> str:
        """Whether its tokens count too much (over), too little (under) or right (fair)."""
        if self.relative is None or abs(self.relative - 1) <= _TOLERANCE:
            return "fair"
        return "over" if self.relative > 1 else "under"

    @property
    def short_label(self) -> str:
        """Its micro-batch; of several ranks ``rank/micro-batch``."""
        label = self.label.removeprefix("rank ")
        return label.replace(" · ", "/").replace(" part ", ".")

    @property
    def bar(self) -> Bar:
        """The bar of its relative weight, to the right of the middle if it is above 1."""
        assert self.relative is not None
        doublings = _doublings(self.relative)
        width = min(abs(doublings) / _DOUBLINGS, 1) * HALF_WIDTH
        return Bar(HALF_WIDTH if doublings > 0 else HALF_WIDTH - width, width)


_without_rank = attrgetter(*(f.name for f in fields(Row) if f.name not in ("rank", "label")))


def _doublings(relative: float) -> float:
    """How often 1 must be doubled to reach a relative weight, at least ``-_DOUBLINGS``."""
    return math.log2(max(abs(relative), 2.0**-_DOUBLINGS))


def rows(facts: StepFacts, verdict: ObjectiveVerdict) -> list[Row]:
    """The rows of one objective, rank by rank: its terms with their weights and shares."""
    ledger, reading = verdict.ledger, verdict.reading
    entries = {id(line): entry for line, entry in zip(ledger.lines, ledger.entries, strict=True)}
    several = any(term.part > 1 for term in reading.terms)
    located = zip(reading.terms, ledger.lines, strict=True)
    located_rows = [
        _row(
            _Position(term.rank, term.micro_batch, term.part if several else 0),
            facts.records[term.rank].micro_batches[term.micro_batch],
            term.loss_term,
            len(facts.records) > 1,
            entries[id(line)],
            ledger.tokens,
        )
        for term, line in located
    ]
    return sorted(located_rows, key=lambda row: (row.rank, row.micro_batch))


def uncounted_rows(facts: StepFacts, verdicts: Sequence[ObjectiveVerdict]) -> list[Row]:
    """The terms that no objective weighs, and the micro-batches in which no term was seen."""
    counted = {id(term.loss_term) for v in verdicts for term in v.reading.terms}
    several_ranks = len(facts.records) > 1
    return [
        _row(_Position(rank, index, 0), batch, term, several_ranks)
        for rank, record in sorted(facts.records.items())
        for index, batch in enumerate(record.micro_batches)
        for term in (batch.terms or (None,))
        if id(term) not in counted
    ]


@dataclass(frozen=True)
class _Position:
    """Where a term is: ``index`` of its micro-batch; its ``part`` of the loss, 0 if it has one."""

    rank: int
    index: int
    part: int


def _row(
    at: _Position,
    batch: MicroBatch,
    term: Term | None,
    several_ranks: bool,
    entry: Entry | None = None,
    total: float = 0.0,
) -> Row:
    rank = f"rank {at.rank} · " if several_ranks else ""
    part = f" part {at.part}" if at.part else ""
    name = short_term_name(term.kind) if term else formatting.NOT_MEASURED
    return Row(
        rank=at.rank,
        micro_batch=at.index + 1,
        label=f"{rank}{at.index + 1}{part}",
        term=name + part,
        reduction=term.reduction if term else formatting.NOT_MEASURED,
        tokens=entry.tokens if entry else term.tokens if term else None,
        token_share=entry.tokens / total if entry else 0.0,
        gradient_share=entry.share if entry else 0.0,
        weight=entry.weight if entry else None,
        relative=entry.relative if entry else None,
        loss=_loss(batch),
        collectives=batch.collectives,
        missing=_missing(batch, term),
    )


def short_term_name(kind: str) -> str:
    """``NllLossBackward0`` without the affixes: ``NllLoss``."""
    return kind.removesuffix("0").removesuffix("Backward")


def _loss(batch: MicroBatch) -> float | None:
    if batch.loss is None:
        return None
    return float(batch.loss) / (float(batch.scale or 1) or 1.0)


def _missing(batch: MicroBatch, term: Term | None) -> str:
    reasons = {**batch.missing, **(term.missing if term else {})}
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def worst_rows(rows: list[Row]) -> list[Row]:
    """All rows, or the ``MOST_ROWS`` with the largest difference between tokens and gradient.

    Of more, those that are equal but for their rank are one row.
    """
    if len(rows) <= MOST_ROWS:
        return rows
    return sorted(_without_repetitions(rows), key=_share_difference, reverse=True)[:MOST_ROWS]


def _without_repetitions(rows: list[Row]) -> list[Row]:
    """The first of the rows that differ in nothing but the rank, with the number of the others."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault(_without_rank(row), []).append(row)
    return [replace(equal[0], alike=len(equal) - 1) for equal in alike.values()]


def _share_difference(row: Row) -> float:
    return abs(row.gradient_share - row.token_share)


@dataclass(frozen=True)
class StepSummary:
    """A step in one sentence; ``tone`` is the verdict whose colour it has."""

    sentence: str
    tone: str


def summarize(facts: StepFacts, verdicts: Sequence[ObjectiveVerdict]) -> StepSummary:
    """What the ledger of a step shows, in one sentence: what is wrong with the heaviest first."""
    if not verdicts:
        reason = facts.unmeasured or "the hooks observed no loss term"
        return StepSummary(f"The weights of this step were not measured: {reason}.", "incomplete")
    wrong = next((v for v in verdicts if v.status == "finding"), None)
    if wrong is not None:
        return _wrong(facts, wrong, len(verdicts) > 1)
    if verdicts[0].status == "not_measured":
        return StepSummary(f"Not measured: {_of(verdicts[0])}{verdicts[0].text}.", "incomplete")
    counted = verdicts[0].unit or "losses"
    if facts.missing_ranks:
        return StepSummary(
            f"The {counted} of the ranks that reported have equal weight; {facts.missing_ranks}.",
            "incomplete",
        )
    if len(verdicts) > 1:
        each = "; ".join(_of(verdict) + verdict.text for verdict in verdicts)
        return StepSummary(f"{formatting.sentence(each)}.", "balanced")
    if verdicts[0].status == "not_applicable":
        return StepSummary(f"Weights not evaluated: {verdicts[0].text}.", "balanced")
    factor = "" if verdicts[0].text == BALANCED else f": {verdicts[0].text}"
    return StepSummary(
        f"All {verdicts[0].unit or 'parts'} of this step have equal weight{factor}.", "balanced"
    )


def _of(verdict: ObjectiveVerdict) -> str:
    return f"{verdict.name}: "


def _wrong(facts: StepFacts, verdict: ObjectiveVerdict, several: bool) -> StepSummary:
    loss = f" of the {verdict.name}" if several else ""
    d = verdict.misallocation or 0.0
    if d > facts.tolerance:
        tone = "broken" if d * (verdict.share or 1.0) >= 0.05 else "suspect"
        return StepSummary(_worst_row_sentence(rows(facts, verdict), verdict.unit, loss), tone)
    b = "" if verdict.balance is None else f" (B = {formatting.figure(verdict.balance)})"
    if verdict.unit is None:
        return StepSummary(f"The {verdict.name} is {verdict.text}{b}.", "suspect")
    return StepSummary(
        f"All {verdict.unit}{loss} of this step have equal weight, but their sum is "
        f"wrong: {verdict.text}{b}.",
        "suspect",
    )


def _worst_row_sentence(rows: list[Row], unit: str | None, loss: str) -> str:
    row = max(rows, key=_share_difference)
    rank = f" of rank {row.rank}" if len({other.rank for other in rows}) > 1 else ""
    tokens, gradient = formatting.percent(row.token_share), formatting.percent(row.gradient_share)
    return (
        f"Micro-batch {row.micro_batch}{rank} has {tokens} of the {unit or 'elements'}{loss} and "
        f"{gradient} of {'its' if loss else 'the'} gradient: {formatting.times(row.relative)} its "
        "correct weight."
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


def grid(rows: list[Row]) -> dict[int, list[Cell]] | None:
    """The cells by rank; None for a single cell, and above ``MOST_CELLS``."""
    cells: dict[int, list[Cell]] = {}
    for (rank, _), group in groupby(rows, key=lambda row: (row.rank, row.micro_batch)):
        cells.setdefault(rank, []).append(_cell(list(group)))
    number = sum(map(len, cells.values()))
    return cells if 1 < number <= MOST_CELLS else None


def _cell(rows: list[Row]) -> Cell:
    tokens = [row.tokens for row in rows if row.tokens is not None]
    token_share = sum(row.token_share for row in rows)
    gradient_share = sum(row.gradient_share for row in rows)
    relative = gradient_share / token_share if token_share else None
    return Cell(sum(tokens) if tokens else None, relative, rows[0].collectives)
