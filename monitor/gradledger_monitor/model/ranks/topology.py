"""Which ranks of a step share data, which hold different data, and which compute no loss (pure).

Only what the records state: a fact that no rank reported is empty. Two ranks have the same data if
the targets of all their micro-batches have the same fingerprints, and at least one of these depends
on the data. Targets that hardly vary from batch to batch, as the labels of a GAN, do not.

The ledger is that of one data-parallel group (``data_group``), whose members have their own tokens
and one gradient. Ranks of one tensor-parallel group see the same data and hold parts of the same
gradient. Of the ranks of one pipeline, only that of the last stage has a loss; the others hold the
stages before it, and are no members of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from gradledger_monitor.ingest.schema import MicroBatch, Replica, StepRecord
from gradledger_monitor.model.batch_size import sum_if_complete, tokens_of
from gradledger_monitor.model.numbers import number

PEERS = (
    "several groups of ranks each hold a whole model in parts, and no wrapper combines their "
    "gradients: whether the loop does is not seen"
)
NORMALISED = (
    "the loss of each rank is divided by the tokens of all ranks, and their gradients are not "
    "combined"
)
OTHER_DATA = (
    "ranks that hold parts of one model have different targets: parts of one sequence, which is "
    "right, or different data, which is not"
)

RecordsByRank = dict[int, StepRecord]
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


def topology(
    world_size: int,
    records: RecordsByRank,
    loss: str | None = None,
    earlier: Callable[[], Iterable[RecordsByRank]] = tuple,
) -> Topology:
    """The topology that the records of one step show; ``loss`` is the kind whose tokens count.

    ``earlier`` returns the records of steps before it, which show whether targets vary. It is
    called only if ranks have the same targets.
    """
    parts = [_part(rank, record, loss) for rank, record in sorted(records.items())]
    groups = {tuple(sorted(r.data_group)) for r in records.values() if r.data_group}
    without_loss = [part.rank for part in parts if not part.computes_loss]
    return Topology(
        world_size=world_size,
        data_groups=[list(group) for group in sorted(groups)],
        same_data=_same_data(records, earlier),
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


def _same_data(
    records: RecordsByRank, earlier: Callable[[], Iterable[RecordsByRank]]
) -> list[Ranks]:
    by_data: dict[tuple[float, ...], Ranks] = {}
    for rank, record in sorted(records.items()):
        fingerprints = tuple(_fingerprints(record))
        if fingerprints:
            by_data.setdefault(fingerprints, []).append(rank)
    same = [ranks for ranks in by_data.values() if len(ranks) > 1]
    steps = [*earlier(), records] if same else []
    return [ranks for ranks in same if _varies(steps, ranks[0])]


def _varies(steps: Sequence[RecordsByRank], rank: int) -> bool:
    """Whether most micro-batches of a rank have other targets than the rest."""
    records = [step[rank] for step in steps if rank in step]
    values = [value for record in records for value in _fingerprints(record)]
    return len(set(values)) * 2 > len(values)


def _fingerprints(record: StepRecord) -> Iterable[float]:
    """Those of all micro-batches; none if one was not measured, or none depends on the data."""
    fingerprints = [number(batch.fingerprint) for batch in record.micro_batches]
    if None in fingerprints or all(batch.constant_target for batch in record.micro_batches):
        return ()
    return [value for value in fingerprints if value is not None]


def data_group(records: RecordsByRank, ranks: Sequence[int]) -> Sequence[int]:
    """The members of the group that is shown, the first that has a loss; empty if all ranks are.

    ``records`` by rank, ascending; ``ranks`` are those of the run, some of which may be missing.
    """
    if joined(records) == "active":
        return () if len(records) == len(ranks) else list(records)
    stages = {rank for rank, record in records.items() if _has_no_loss(record)}
    if len(stages) == len(records):  # of one pipeline, or of an optimizer of earlier stages
        return () if len(records) < len(ranks) else _with_data_of(records, next(iter(records)))
    groups = {r: record.data_group for r, record in records.items() if r in record.data_group}
    if groups:
        with_loss = [r for r in groups if any(m.terms for m in records[r].micro_batches)]
        return sorted(groups[next(iter(with_loss or groups))])
    if not stages:
        return ()
    for rank in records.keys() - stages:  # what is missing of its pipeline has no loss either
        stages |= set(records[rank].pipeline) - records.keys()
    return [rank for rank in ranks if rank not in stages]


def joined(records: RecordsByRank) -> str | None:
    """What DDP divides by in a `Join` context, where a rank without a record has no more data."""
    divisors = {record.join for record in records.values()}
    return divisors.pop() if len(divisors) == 1 else None


def count_left(records: RecordsByRank, world_size: int) -> int:
    """Ranks that have left a `Join` context in which DDP divides by the remaining ones."""
    return world_size - len(records) if joined(records) == "active" else 0


def is_complete(records: RecordsByRank, world_size: int) -> bool:
    """Whether every rank has sent its record, or has no more data."""
    return len(records) >= world_size or joined(records) is not None


def _with_data_of(records: RecordsByRank, rank: int) -> Sequence[int]:
    group = records[rank].data_group
    return sorted(group) if rank in group else [rank]


def _has_no_loss(record: StepRecord) -> bool:
    """Whether every backward started from gradients that a later stage sent."""
    batches = record.micro_batches
    return bool(batches) and all(m.relayed for m in batches)


def earlier_stages(
    records: RecordsByRank, group: Sequence[int]
) -> tuple[tuple[int, Replica | None], ...]:
    """Ranks outside the group that only pass gradients on, with their parameters, if sampled."""
    others = ((rank, record) for rank, record in records.items() if rank not in group)
    return tuple((rank, record.replica) for rank, record in others if _has_no_loss(record))


def tensor_peers(records: RecordsByRank, group: Sequence[int]) -> RecordsByRank:
    """Ranks of tensor parallelism by DTensors, with the first of the group that is shown.

    Their ``replica`` has the parameters that are not placed over them. Of parts by hand, each
    rank samples all it holds.
    """
    shown = records.get(group[0])
    if shown is None or len(shown.tensor_group) < 2 or any(m.sums for m in shown.micro_batches):
        return {}
    return {rank: records[rank] for rank in shown.tensor_group if rank in records}


def positions_of_earlier(records: RecordsByRank, group: Sequence[int]) -> dict[int, int]:
    """By rank of an earlier stage, its position in its pipeline, where the stage is known."""
    earlier = [rank for rank, _ in earlier_stages(records, group)]
    return {r: p.index(r) for r in earlier if r in (p := records[r].pipeline)}


class Apart(NamedTuple):
    """A rank outside the group: nothing shows that the two train one model."""

    rank: int
    parameters: float | None  # fingerprint, before the step


def apart(records: RecordsByRank, group: Sequence[int]) -> tuple[Apart, ...]:
    """Ranks of other groups of a wrapper, with a loss of other data, and no model parts to share.

    Of FSDP2's groups, those that hold the shards of the group's first rank: others differ anyway.
    Tensor-parallel ranks have the data of a member. What communicates after backward may combine
    gradients, unless each rank only multiplied its own by one number.
    """
    wrappers = {record.wrapper for record in records.values()}
    if len(wrappers) > 1 or not wrappers <= {"ddp", "fsdp2"}:
        return ()
    if any(_may_combine(r) or _shares(r) for r in records.values()):
        return ()
    of_group = {tuple(_fingerprints(records[rank])) for rank in group if rank in records}
    outside = [(rank, record) for rank, record in records.items() if rank not in group]
    prints = [tuple(_fingerprints(record)) for _, record in outside]
    if not all(of_group) or not all(prints) or not of_group.isdisjoint(prints):
        return ()
    shard = _shard_index(min(group), records[min(group)]) if wrappers == {"fsdp2"} else None
    return tuple(
        Apart(rank, number(record.parameters))
        for rank, record in outside
        if shard is None or _shard_index(rank, record) == shard
    )


def _shard_index(rank: int, record: StepRecord) -> int:
    return sorted(record.data_group).index(rank) if rank in record.data_group else -1


def _may_combine(record: StepRecord) -> bool:
    return bool(record.collectives_after) and record.post_factor is None


def _shares(record: StepRecord) -> bool:
    return len(record.tensor_group) > 1 or len(record.pipeline) > 1 or record.averaging


def members(records: RecordsByRank, group: Sequence[int]) -> RecordsByRank:
    """The records of a group. That of a pipeline has the norm over all its stages.

    If there is one pipeline, its collectives combine no gradients.
    """
    chosen = {rank: records[rank] for rank in group if rank in records}
    for rank, record in chosen.items():
        if _differ_in_data(records, record.tensor_group):
            missing = record.missing | {"sync": OTHER_DATA}
            chosen[rank] = structs.replace(record, missing=missing)
        elif len(group) == 1 and _has_peers(records, record):
            missing = record.missing | {"sync": PEERS}
            chosen[rank] = structs.replace(record, missing=missing)
    for rank, record in chosen.items():
        if len(record.pipeline) > 1:
            chosen[rank] = structs.replace(record, norm=_norm(records, record))
    if len(group) == 1 < len(records):
        return {rank: structs.replace(record, sync="none") for rank, record in chosen.items()}
    return chosen


def _has_peers(records: RecordsByRank, record: StepRecord) -> bool:
    """Whether other ranks hold the same parts of a model that no wrapper replicates."""
    if len(record.tensor_group) < 2 or record.wrapper or record.pipeline:
        return False
    return any(
        len(other.tensor_group) == len(record.tensor_group)
        and not set(other.tensor_group) & set(record.tensor_group)
        for other in records.values()
    )


def _differ_in_data(records: RecordsByRank, ranks: Ranks) -> bool:
    """Whether the ranks of a tensor-parallel group are known to have different targets."""
    prints = [tuple(_fingerprints(records[rank])) for rank in ranks if rank in records]
    return len(prints) > 1 and all(prints) and len(set(prints)) > 1


def _norm(records: RecordsByRank, record: StepRecord) -> float | None:
    norms = [number(records[r].norm) if r in records else None for r in record.pipeline]
    measured = [norm for norm in norms if norm is not None]
    return math.hypot(*measured) if len(measured) == len(norms) else None


def rescaled_later(applied: Sequence[tuple[int, MicroBatch]]) -> dict[int, float]:
    """By index, the factor on a micro-batch's gradients from then to the last backward.

    A pipeline's schedule, or a loop, may multiply them between two backwards.
    """
    if not any(m.rescaled is not None for _, m in applied):
        return {}
    factors, product = {}, 1.0
    for index, micro_batch in reversed(applied):
        factors[index] = product
        factor = number(micro_batch.rescaled)
        product *= 1.0 if factor is None else factor
    return factors


def divide_by_all(
    applied: Mapping[int, Sequence[tuple[int, MicroBatch]]],
    factors: Mapping[int, float],
    tolerance: float,
) -> bool:
    """Whether each rank divides its loss by the tokens of all ranks, or by their mean over ranks.

    ``applied`` are the micro-batches of each rank, ``factors`` those on its gradients afterwards.
    False if all have equally many tokens, which shows nothing.
    """
    if len(applied) < 2:
        return False
    counts, divisors = [], []
    for rank, pairs in applied.items():
        terms = [term for _, m in pairs for term in m.terms if not term.penalty]
        if len({term.kind for term in terms}) != 1:
            return False
        weights = [(float(t.tokens or 0), float(t.weight or 0.0)) for t in terms]
        balance = factors[rank] * math.fsum(n * abs(weight) for n, weight in weights)
        counts.append(math.fsum(n for n, _ in weights))
        if not balance or not counts[-1]:
            return False
        divisors.append(counts[-1] / balance)
    if len(set(counts)) < 2:
        return False
    expected = (math.fsum(counts), math.fsum(counts) / len(counts))
    return any(all(abs(d - n) <= tolerance * n for d in divisors) for n in expected)


def steps_along(optimizer: str, records: Mapping[int, StepRecord]) -> bool:
    """Whether a rank without data steps along with the others, as in PyTorch's ``Join``.

    There, only ``ZeroRedundancyOptimizer`` steps on such a rank: the shards need each other.
    """
    counts = [len(record.micro_batches) for record in records.values()]
    return shares_out(optimizer) and not all(counts) and any(counts)


def shares_out(optimizer: str) -> bool:
    """Whether each rank updates a share of the parameters, and sends it to the others."""
    return optimizer == "ZeroRedundancyOptimizer"
