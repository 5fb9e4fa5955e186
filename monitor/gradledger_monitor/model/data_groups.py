"""Which ranks of a step are data-parallel members: each has its own tokens, and all one gradient.

Ranks of one tensor-parallel group see the same data and hold parts of the same gradient. Of the
ranks of one pipeline, only that of the last stage has a loss; the others hold the stages before it,
and are no members of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.numbers import number

RecordsByRank = dict[int, StepRecord]


def data_group(records: RecordsByRank, ranks: Sequence[int]) -> Sequence[int]:
    """The members of the group that is shown, the first that has a loss; empty if all ranks are.

    ``records`` by rank, ascending; ``ranks`` are those of the run, some of which may be missing.
    """
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
        stages |= set(records[rank].pipeline) - {rank}
    return [rank for rank in ranks if rank not in stages]


def _with_data_of(records: RecordsByRank, rank: int) -> Sequence[int]:
    return sorted(records[rank].data_group) or [rank]


def _has_no_loss(record: StepRecord) -> bool:
    """Whether every backward started from gradients that a later stage sent."""
    batches = record.micro_batches
    return bool(batches) and all(m.relayed for m in batches)


def members(records: RecordsByRank, group: Sequence[int]) -> RecordsByRank:
    """The records of a group. That of a pipeline has the norm over all its stages.

    If there is one pipeline, its collectives combine no gradients.
    """
    chosen = {rank: records[rank] for rank in group if rank in records}
    for rank, record in chosen.items():
        if len(record.pipeline) > 1:
            chosen[rank] = replace(record, norm=_norm(records, record))
    if len(group) == 1 < len(records):
        return {rank: replace(record, sync="none") for rank, record in chosen.items()}
    return chosen


def _norm(records: RecordsByRank, record: StepRecord) -> float | None:
    norms = [number(records[r].norm) if r in records else None for r in record.pipeline]
    measured = [norm for norm in norms if norm is not None]
    return math.hypot(*measured) if len(measured) == len(norms) else None
