"""What a loop did to the gradients that a wrapper averaged over groups of ranks: data parallelism
in two dimensions, of which DDP or FSDP2 holds one.

After backward, a group has one gradient, its average ``x_g``: each rank all of it, or its shard. If
the ranks of one place in each group step on the same ``y`` afterwards, and ``y = c * (sum of x_g
over the groups)``, the loop has combined the groups, and all ranks train one model: c = 1 / (number
of groups) averages them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.clipping import clipping_of_window
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks import topology
from gradledger_monitor.model.ranks.manual_all_reduce import (
    UNSEEN,
    ManualAllReduce,
    RecordsByRank,
    fit,
    infer,
    tolerance_of,
)
from gradledger_monitor.model.ranks.parts_by_hand import as_members, holders_of_parts
from gradledger_monitor.model.ranks.rows import are_equal, clusters_of, values_of
from gradledger_monitor.model.ranks.weighted_sum import NO_SUM

OF_GROUPS = (
    "the wrapper averages the gradients of groups of ranks, and the loop communicates and changes "
    "them afterwards: {}"
)


def with_groups(
    records: RecordsByRank, world_size: int
) -> tuple[RecordsByRank, ManualAllReduce | None]:
    """The records by rank, ascending, and what the loop did, if it changed what DDP averaged.

    If it combined the groups, the records are those of one group, and the factors multiply the sum
    over all ranks. If that is not known, they state why; other records are returned as they are.
    """
    if len(records) == 1:
        return records, None
    records = _as_peers(as_members(dict(sorted(records.items())), world_size), world_size)
    groups = {tuple(sorted(record.data_group)) for record in records.values()}
    if len(records) < world_size or not all(map(_may_combine, records.values())):
        return records, None
    if sorted(rank for group in groups for rank in group) != list(records):
        return records, None  # one group, or groups that overlap
    combined = _combination(records, [list(group) for group in sorted(groups)])
    if not combined.is_known:
        missing = {"sync": OF_GROUPS.format(combined.reason)}
        unknown = {r: replace(each, missing=each.missing | missing) for r, each in records.items()}
        return unknown, None
    size = len(records) // len(groups)  # x_g is the sum over a group, divided by this
    weights = dict(zip(sorted(groups), combined.factors, strict=False))
    all_reduce = dataclasses.replace(
        combined,
        factor=None if combined.factor is None else combined.factor / size,
        factors=tuple(weights[tuple(sorted(r.data_group))] / size for r in records.values())
        if weights
        else (),
        of_groups=len(groups),
    )
    return {r: _of_all(each, len(groups)) for r, each in records.items()}, all_reduce


def _as_peers(records: RecordsByRank, world_size: int) -> RecordsByRank:
    """The records of ranks of tensor parallelism by DTensors, with the ranks that hold the same
    parts in other groups as members, if the loop is seen to combine their gradients.

    Without the collectives inside backward, which are those of activations.
    """
    if len(records) < world_size or not all(map(_may_have_peers, records.values())):
        return records
    groups = sorted({tuple(record.tensor_group) for record in records.values()})
    alike = len(set(map(len, groups))) == 1
    if len(groups) < 2 or not alike or sorted(itertools.chain(*groups)) != list(records):
        return records
    across = list(map(list, zip(*groups, strict=True)))
    peers = {rank: ranks for ranks in across for rank in ranks}
    changed = {
        rank: replace(
            record,
            data_group=peers[rank],
            sync="unknown",
            sharded=False,
            micro_batches=[replace(each, collectives=0) for each in record.micro_batches],
        )
        for rank, record in records.items()
    }
    inferred = [infer({rank: changed[rank] for rank in ranks}) for ranks in across]
    return changed if all(each is not None and each.is_combined for each in inferred) else records


def _may_have_peers(record: StepRecord) -> bool:
    """Whether it holds parts by DTensors without a wrapper, and may combine after backward."""
    parts = record.sharded and len(record.tensor_group) > 1 and not record.wrapper
    return bool(parts and record.collectives_after and not (record.pipeline or record.skipped))


def beside(records: RecordsByRank, group: Sequence[int], world_size: int) -> dict[str, Any]:
    """What is known of ranks outside the group that is judged, as fields of its run."""
    return {
        "earlier_stages": topology.earlier_stages(records, group),
        "factors_of_earlier": _factors_of_earlier(records, group),
        "positions_of_earlier": topology.positions_of_earlier(records, group),
        "apart": topology.apart(records, group),
        "parts": holders_of_parts(records, group),
        "tensor_peers": topology.tensor_peers(records, group),
        "left": topology.count_left(records, world_size),
    }


def _factors_of_earlier(records: RecordsByRank, group: Sequence[int]) -> dict[int, float]:
    """By rank of an earlier stage, what multiplies the sum of its copies' gradients, where known.

    Copies step on the same gradients.
    """
    earlier = [rank for rank, _ in topology.earlier_stages(records, group)]
    sampled = {r: s for r in earlier if (s := records[r].samples) and not records[r].wrapper}
    tolerance = tolerance_of(list(records.values()))
    factors: dict[int, float] = {}
    if len({len(sample.at_step) for sample in sampled.values()}) > 1:
        return factors
    for cluster in clusters_of(values_of(list(sampled.values()))[1], tolerance):
        ranks = [list(sampled)[index] for index in cluster]
        clippings = [clipping_of_window(records[rank]) for rank in ranks]
        factor = fit(ranks, [sampled[rank] for rank in ranks], clippings, tolerance).factor
        if len(ranks) == len(group) and factor is not None:
            factors |= dict.fromkeys(ranks, factor)
    return factors


def _of_all(record: StepRecord, groups: int) -> StepRecord:
    """As of one group. Of each shard, every group has a copy now, whose norm would count again."""
    norm = number(record.norm)
    if record.sharded and norm is not None:
        norm /= math.sqrt(groups)
    return replace(record, data_group=[], norm=norm)


def _may_combine(record: StepRecord) -> bool:
    """Whether the loop changed what was averaged over a group, and not by one factor."""
    if record.wrapper not in ("ddp", "fsdp2") or record.sync != "averaged" or record.skipped:
        return False
    others = (
        len(record.tensor_group) > 1
        or record.outside
        or record.divisors
        or "replica" in record.missing
    )
    communicates = record.data_group and record.collectives_after
    return bool(communicates and record.post_factor is None and record.changed and not others)


def _combination(records: RecordsByRank, groups: list[list[int]]) -> ManualAllReduce:
    """What was done to the ranks of one place in each group: these hold the same parameters."""
    samples = {rank: r.samples for rank, r in records.items() if r.samples is not None}
    if len(samples) < len(records) or len({len(group) for group in groups}) > 1:
        return ManualAllReduce(reason=UNSEEN)
    tolerance = tolerance_of(list(records.values()))
    fits = []
    for ranks in map(list, zip(*groups, strict=True)):
        clippings = [clipping_of_window(records[rank]) for rank in ranks]
        fits.append(fit(ranks, [samples[rank] for rank in ranks], clippings, tolerance))
    factors = [each.factors_of(len(groups)) for each in fits if each.is_known]
    if len(factors) < len(fits):
        return next(each for each in fits if not each.is_known)
    alike = all(are_equal(column, tolerance) for column in zip(*factors, strict=True))
    return fits[0] if alike else ManualAllReduce(reason=NO_SUM)
