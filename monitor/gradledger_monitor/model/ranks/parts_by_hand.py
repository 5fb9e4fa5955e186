"""Ranks that hold parts of one model, by hand: tensor parallelism with all-reduces in autograd
functions.

Ranks of a tensor-parallel group compute the same losses of the same data, although they hold
different parameters: they exchange activations. Each all-reduce inside their backwards then adds up
different values, the parts of one gradient. What has the same values on all ranks must not be added
up: that multiplies the gradient by the number of ranks.
"""

from __future__ import annotations

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.numbers import number

RecordsByRank = dict[int, StepRecord]


def as_members(records: RecordsByRank, world_size: int) -> RecordsByRank:
    """The records, with the groups of ranks that hold one model, and its peers in other groups.

    As they are if that is not shown.
    """
    if not 1 < world_size == len(records) or not all(map(_combines_parts, records.values())):
        return records
    groups: dict[tuple[float, ...], list[int]] = {}
    for rank, record in sorted(records.items()):
        groups.setdefault(_losses_and_data(record), []).append(rank)
    sizes = {len(ranks) for ranks in groups.values()}
    if sizes == {1} or len(sizes) > 1 or () in groups:
        return records
    if len(groups) == 1 and any(map(_may_mix_parts, records.values())):
        return records
    changed = dict(records)
    for ranks in groups.values():
        for index, rank in enumerate(ranks):
            peers = [others[index] for others in groups.values()]
            changed[rank] = _of_group(records[rank], ranks, peers)
    return changed


def _of_group(record: StepRecord, ranks: list[int], peers: list[int]) -> StepRecord:
    """Without collectives that are those of activations.

    Before it is seen what hooks of the parameters do, they may be those of groups, too.
    """
    batches = record.micro_batches
    if len(peers) == 1 or record.before_hooks:
        batches = [replace(each, collectives=0) for each in batches]
    return replace(record, tensor_group=ranks, data_group=peers, micro_batches=batches)


def _combines_parts(record: StepRecord) -> bool:
    """Whether all that communicates inside the backwards is all-reduces of different values.

    They are sampled in the first backward of a window. The others must run as many.
    """
    described = record.wrapper or record.tensor_group or record.data_group or record.pipeline
    sums = record.micro_batches[0].sums if record.micro_batches else []
    return not (described or record.skipped or any(map(number, sums))) and all(
        m.collectives == len(sums) > 0 for m in record.micro_batches
    )


def _may_mix_parts(record: StepRecord) -> bool:
    """Whether the loop may have combined gradients of different parameters after backward."""
    return bool(record.collectives_after) and record.post_factor is None


def _losses_and_data(record: StepRecord) -> tuple[float, ...]:
    """Empty if a loss was not measured, or none depends on the data.

    Of a function that hides its targets, equal losses in all micro-batches show equal data.
    """
    batches = record.micro_batches
    losses = [loss for m in batches if (loss := number(m.loss)) is not None]
    constant = all(batch.constant_target for batch in batches)
    if len(losses) < len(batches) or constant:
        return ()
    return (*losses, *(number(m.fingerprint) or 0.0 for m in batches))
