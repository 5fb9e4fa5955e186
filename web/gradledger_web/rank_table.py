"""The ranks of a run as a table: what each does, and its tokens in the latest step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.model.ranks.topology import RankPart, Topology

MOST_ROWS = 32


@dataclass(frozen=True)
class RankRow:
    """One rank; ``fraction`` is its tokens as a part of the most tokens of a rank."""

    rank: int
    role: str
    tokens: int | None
    fraction: float
    micro_batches: int | None
    absent: str  # why there is no record of it; empty if there is one


@dataclass(frozen=True)
class Ranks:
    """The table, with what holds for groups of ranks in sentences."""

    step: int
    world_size: int
    sentences: list[str]
    rows: list[RankRow]
    hidden: int  # ranks without a row


def table(topology: Topology, step: int, never_sent: Sequence[int]) -> Ranks:
    """The ranks at a step; ``never_sent`` are those from which no record arrived at all."""
    rows = rank_rows(topology, never_sent)
    hidden = topology.world_size - len(rows)
    return Ranks(step, topology.world_size, groups(topology), rows, hidden)


def rank_rows(topology: Topology, never_sent: Sequence[int]) -> list[RankRow]:
    """The ranks in order. Of many, those without a record first, then the first of the others."""
    parts = {part.rank: part for part in topology.ranks}
    absent = [rank for rank in range(topology.world_size) if rank not in parts]
    ranks = [*absent, *parts]
    chosen = ranks[:MOST_ROWS] if len(ranks) > MOST_ROWS else sorted(ranks)
    most = max((part.tokens or 0 for part in topology.ranks), default=0)
    return [_row(rank, parts.get(rank), topology, never_sent, most) for rank in chosen]


def _row(
    rank: int, part: RankPart | None, topology: Topology, never_sent: Sequence[int], most: int
) -> RankRow:
    if part is None:
        absent = "never sent a record" if rank in never_sent else "no record of this step"
        return RankRow(rank, "", None, 0.0, None, absent)
    fraction = (part.tokens or 0) / most if most else 0.0
    return RankRow(rank, _role(part, topology), part.tokens, fraction, part.micro_batches, "")


def _role(part: RankPart, topology: Topology) -> str:
    if part.rank in topology.without_loss:
        return "computes no loss"
    peers = next((ranks for ranks in topology.same_data if part.rank in ranks), [])
    others = [rank for rank in peers if rank != part.rank]
    return f"same data as {formatting.rank_names(others)}" if others else "computes the loss"


def groups(topology: Topology) -> list[str]:
    """How the ranks work together, one sentence for each fact that the records state."""
    sentences = []
    if topology.data_groups:
        listed = "; ".join(formatting.rank_names(group) for group in topology.data_groups)
        sentences.append(f"Data-parallel groups, whose gradients are combined: {listed}.")
    if topology.same_data:
        listed = "; ".join(formatting.rank_names(ranks) for ranks in topology.same_data)
        sentences.append(f"Ranks with the same data: {listed}.")
    if topology.without_loss:
        sentences.append(
            f"No loss on {formatting.rank_names(topology.without_loss)}, such as pipeline stages."
        )
    tokens = [part.tokens for part in topology.ranks if part.tokens is not None]
    if len(tokens) > MOST_ROWS:
        low, high = formatting.count(min(tokens)), formatting.count(max(tokens))
        sentences.append(f"Tokens of a rank: {low} to {high}.")
    return sentences
