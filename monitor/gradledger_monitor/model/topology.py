"""Which ranks of a step share data, which hold different data, and which compute no loss (pure).

Only what the records state: a fact that no rank reported is empty. Two ranks have the same data if
the targets of all their micro-batches have the same fingerprints, and at least one of these depends
on the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import structs

from gradledger_monitor.ingest.schema import MicroBatch, StepRecord
from gradledger_monitor.model.batch_size import sum_if_complete, tokens_of
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import RecordsByRank

Ranks = list[int]


@dataclass(frozen=True)
class RankPart:
    """What one rank did in the step; ``tokens`` is None where they were not counted."""

    rank: int
    tokens: int | None
    micro_batches: int
    computes_loss: bool


@dataclass(frozen=True)
class Topology:
    """How the ranks of one step work together.

    ``data_groups``: ranks with different data whose gradients are combined, where not all ranks of
    the run are one group. ``same_data``: ranks that see the same data, such as tensor-parallel
    peers. ``without_loss``: ranks without one, where others have one, such as pipeline stages.
    """

    world_size: int
    data_groups: list[Ranks]
    same_data: list[Ranks]
    without_loss: Ranks
    ranks: list[RankPart]


def topology(world_size: int, records: RecordsByRank, loss: str | None = None) -> Topology:
    """The topology that the records of one step show; ``loss`` is the kind whose tokens count."""
    parts = [_part(rank, record, loss) for rank, record in sorted(records.items())]
    groups = {tuple(sorted(r.data_group)) for r in records.values() if r.data_group}
    without_loss = [part.rank for part in parts if not part.computes_loss]
    return Topology(
        world_size=world_size,
        data_groups=[list(group) for group in sorted(groups)],
        same_data=_same_data(records),
        without_loss=without_loss if len(without_loss) < len(parts) else [],
        ranks=parts,
    )


def _part(rank: int, record: StepRecord, loss: str | None) -> RankPart:
    batches = record.micro_batches
    return RankPart(
        rank=rank,
        tokens=sum_if_complete([_tokens(batch, loss) for batch in batches]),
        micro_batches=len(batches),
        computes_loss=any(batch.terms for batch in batches),
    )


def _tokens(batch: MicroBatch, loss: str | None) -> int | None:
    terms = [term for term in batch.terms if loss in (None, term.kind)]
    return tokens_of(structs.replace(batch, terms=terms))


def _same_data(records: RecordsByRank) -> list[Ranks]:
    by_data: dict[tuple[float, ...], Ranks] = {}
    for rank, record in sorted(records.items()):
        fingerprints = tuple(_fingerprints(record))
        if fingerprints:
            by_data.setdefault(fingerprints, []).append(rank)
    return [ranks for ranks in by_data.values() if len(ranks) > 1]


def _fingerprints(record: StepRecord) -> Iterable[float]:
    """Those of all micro-batches; none if one was not measured, or none depends on the data."""
    fingerprints = [number(batch.fingerprint) for batch in record.micro_batches]
    if None in fingerprints or all(batch.constant_target for batch in record.micro_batches):
        return ()
    return [value for value in fingerprints if value is not None]
