"""Compares the norms of the ranks' gradients: after an all-reduce, they are equal."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.clipping import clipping_of_window
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.rows import are_equal


def norms_differ(rows: Iterable[StepRecord]) -> bool:
    """Whether the gradients' norms, before clipping, are known on all ranks and differ."""
    norms = [norm_before_clipping(record) for record in rows]
    finite = [norm for norm in norms if norm is not None and math.isfinite(norm)]
    return len(finite) == len(norms) and not are_equal(finite, tolerances.NORM)


def norms_are_equal(rows: Iterable[StepRecord]) -> bool:
    """Whether the gradients' norms, before clipping, are known on all ranks, equal and not 0."""
    norms = [norm_before_clipping(record) or math.nan for record in rows]
    return all(map(math.isfinite, norms)) and are_equal(norms, tolerances.NORM)


def norm_before_clipping(record: StepRecord) -> float | None:
    """The norm of the gradients of this rank, without the clipping of its last calls."""
    norm = number(record.norm)
    return None if norm is None else norm / clipping_of_window(record)
