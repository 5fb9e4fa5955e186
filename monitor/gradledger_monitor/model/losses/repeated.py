"""Backwards of a window that add what its micro-batches do not: leaked losses, and earlier ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from gradledger_monitor.ingest.schema import MicroBatch
from gradledger_monitor.model.losses.names import IndexedMicroBatches


def leaked_losses(applied: IndexedMicroBatches) -> list[int]:
    """The indices of micro-batches of a loss on which another optimizer has already stepped.

    None if all have the same losses, or if it has stepped on all: two optimizers then share a loss.
    """
    claimed = [index for index, m in applied if m.claimed]
    if not claimed:
        return claimed
    losses = {tuple((t.kind, t.head, t.reduction) for t in m.terms) for _, m in applied}
    return claimed if len(claimed) < len(applied) and len(losses) > 1 else []


def adds_again(batches: Sequence[MicroBatch]) -> bool:
    """Whether each backward after the first has all losses of the one before, and further ones.

    The further ones are of the kinds of the first: other losses may be added to one on purpose.
    """
    pairs = list(itertools.pairwise(batches))
    return bool(pairs) and all(
        _goes_on(before, after) and _kinds_added(after) == _kinds_added(batches[0])
        for before, after in pairs
    )


def _goes_on(before: MicroBatch, after: MicroBatch) -> bool:
    again = sum(term.again for term in after.terms)
    return 0 < len(before.terms) == again < len(after.terms) and not after.fresh


def _kinds_added(micro_batch: MicroBatch) -> set[str]:
    return {term.kind for term in micro_batch.terms if not term.again}
