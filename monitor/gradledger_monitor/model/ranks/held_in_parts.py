"""Parameters that groups of ranks hold beside those of all ranks: experts, whose tokens come from
all ranks of a model.

The loop combines the gradients of the former over their copies, the ranks of a group, and the rest
over all ranks: the samples show by what it multiplies each sum. Where ranks exchange activations,
the gradient of an expert is a sum over the tokens of all ranks that exchange them, so the two
numbers must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gradledger_monitor.ingest.schema import Replica, StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.rows import Rows, are_equal

OF_ONE_BATCH = (
    "all ranks compute the same losses and communicate inside backward, as in tensor parallelism "
    "by hand: by what that multiplies their gradients is not known"
)
ADDED_UP = (
    "inside backward, an all-reduce adds up a gradient that is the same on all ranks, as that of "
    "torch.distributed.nn.functional.all_reduce does: it multiplies what is below it by {:.4g}"
)
INSIDE = (
    "the ranks communicate inside backward, without a wrapper: whether they exchange activations "
    "or combine gradients there, and how, is not known"
)

FactorOf = Callable[[Rows, list[float]], float | None]


class Parts(NamedTuple):
    """By what the loop multiplied the sums over all ranks, and those over the groups."""

    of_all: float
    of_groups: float
    groups: list[list[int]]  # of ranks by their index


def hold_different(of_ranks: Iterable[Replica | None]) -> bool:
    """Whether the optimizers hold other parameters each: another number, other names or shapes."""
    replicas = [replica for replica in of_ranks if replica is not None]
    numbers = {replica.total for replica in replicas}
    names = {tuple(replica.names) for replica in replicas if replica.names}
    shapes = {tuple(map(tuple, replica.shapes)) for replica in replicas if replica.names}
    return len(numbers) > 1 or len(names) > 1 or len(shapes) > 1


def exchange_activations(rows: Sequence[StepRecord]) -> bool:
    """Whether ranks with other data each communicate within backward, and combine gradients later.

    Ranks of tensor parallelism communicate there, too, but have the same data.
    """
    inside = all(
        row.wrapper is None and any(m.collectives for m in row.micro_batches) for row in rows
    )
    after = all(row.collectives_after for row in rows)
    prints = [tuple(number(m.fingerprint) for m in row.micro_batches) for row in rows]
    constant = any(m.constant_target for row in rows for m in row.micro_batches)
    if constant or any(None in each for each in prints):
        return False
    return inside and after and len(set(prints)) == len(rows)


def exchange_tokens(records: Mapping[int, StepRecord]) -> bool:
    """Whether the ranks send parts of a batch to each other, as tokens to their experts."""
    return all(record.exchanges for record in records.values())


def inside_backward(rows: Sequence[StepRecord]) -> str:
    """What is not known of ranks without a wrapper whose backwards communicate; else nothing."""
    if not _communicate(rows):
        return ""
    if len({_losses_and_data(row) for row in rows}) != 1:
        return INSIDE
    factors = [f for row in rows for m in row.micro_batches for f in map(number, m.sums) if f]
    return next((ADDED_UP.format(f) for f in factors if _is_sum_of_equals(f)), OF_ONE_BATCH)


def have_same_tokens(rows: Sequence[StepRecord]) -> bool:
    """Whether all ranks compute the same losses of the same data, and exchange activations.

    Each rank then shows how these tokens weigh, but for one factor.
    """
    different = {_losses_and_data(row) for row in rows}
    constant = any(m.constant_target for row in rows for m in row.micro_batches)
    measured = len(different) == 1 and all(None not in pair for pair in next(iter(different)))
    return measured and not constant and _communicate(rows)


def _communicate(rows: Sequence[StepRecord]) -> bool:
    return all(not r.wrapper and any(m.collectives for m in r.micro_batches) for r in rows)


def _losses_and_data(row: StepRecord) -> tuple[tuple[float | None, float | None], ...]:
    return tuple((number(m.loss), number(m.fingerprint)) for m in row.micro_batches)


def _is_sum_of_equals(factor: float) -> bool:
    """Whether it is a number of ranks; one that is not known is not a number."""
    whole = math.isfinite(factor) and are_equal([factor, round(factor)], tolerances.SAMPLE_HALF)
    return whole and round(factor) > 1


def parts_of(
    before: Rows, applied: Rows, tolerance: float, factor_of: FactorOf, least: int = 2
) -> Parts | None:
    """What was combined over all ranks, and what over groups of them; None if nothing shows it.

    ``factor_of`` returns by what a sum of rows was multiplied. ``least``: ranks in a group.
    Where ranks do not send tokens to each other, what one has alone may be its own model.
    """
    columns = range(len(applied[0]))
    shared = [i for i in columns if are_equal([row[i] for row in applied], tolerance)]
    held = [i for i in columns if i not in shared]
    of_all = factor_of(_at(shared, before), _at(shared, applied)[0])
    own, left = _at(held, before), _at(held, applied)
    groups = _equal_rows(left, tolerance)
    if of_all is None or min(map(len, groups)) < least or len(set(map(len, groups))) > 1:
        return None
    factors = [factor_of([own[i] for i in group], left[group[0]]) for group in groups]
    measured = [factor for factor in factors if factor is not None]
    if len(measured) < len(factors) or not are_equal(measured, tolerance):
        return None
    return Parts(of_all, measured[0], groups)


def _at(columns: Sequence[int], rows: Rows) -> Rows:
    return [[row[column] for column in columns] for row in rows]


def _equal_rows(rows: Rows, tolerance: float) -> list[list[int]]:
    """The rows by their index; equal ones are together."""
    groups: list[list[int]] = []
    for index, row in enumerate(rows):
        for group in groups:
            pairs = zip(row, rows[group[0]], strict=True)
            if all(are_equal(pair, tolerance) for pair in pairs):
                group.append(index)
                break
        else:
            groups.append([index])
    return groups
