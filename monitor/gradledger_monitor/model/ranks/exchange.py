"""What something besides the optimizers did to the ranks' models before a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.manual_all_reduce import RecordsByRank, fit, tolerance_of
from gradledger_monitor.model.ranks.mixtures import (
    Drawn,
    Mixture,
    copied_from,
    drawn_together,
    keep_mean,
    mixture_of,
)
from gradledger_monitor.model.ranks.rows import (
    MIN_COORDINATES,
    Rows,
    are_equal,
    count_combined,
    values_of,
)


class Exchange(NamedTuple):
    """The models of the ranks that changed, before and after, and what shows an exchange.

    ``equal``: values that differed are the same on all ranks. ``whole``: all of them are, and
    ``mixture`` is what they became, else what those did that changed. ``keeps_mean`` and
    ``drawn``: see ``mixtures``. ``copied``: the rows that all ranks took over.
    """

    before: Rows
    after: Rows
    equal: bool
    whole: bool
    mixture: Mixture | None
    keeps_mean: bool
    drawn: Drawn | None
    copied: tuple[int, ...]


def exchange_of(records: Mapping[int, StepRecord]) -> Exchange | None:
    """What happened to the models; None if those of less than two ranks changed.

    An exchange in one pair of ranks changes their models alone.
    """
    samples = [record.models for record in records.values() if record.models is not None]
    if len(samples) < 2:
        return None
    before, after = values_of(samples)
    if len({len(row) for row in before + after}) != 1:
        return None
    equal = len(samples) == len(records) and _become_equal(before, after)
    mixture = mixture_of(before, after)
    columns = zip(zip(*before, strict=True), zip(*after, strict=True), strict=True)
    changed = [index for index, (then, now) in enumerate(columns) if then != now]
    partly = mixture or mixture_of(_at(changed, before), _at(changed, after))
    return Exchange(
        before,
        after,
        equal,
        mixture is not None,
        partly,
        keep_mean(before, after),
        drawn_together(before, after),
        copied_from(before, after),
    )


def model_average(records: RecordsByRank) -> float | None:
    """What the ranks made of their models, as a multiple of the average; None if it was not seen.

    Of an outer optimizer: of the changes of their models.
    """
    rows = list(records.values())
    samples = [r.models for r in rows if r.models is not None]
    if len(samples) < len(rows):
        return None
    tolerance = tolerance_of(rows)
    before, after = values_of(samples)
    if len({len(values) for values in before + after}) != 1:
        return None
    if count_combined(before, after, tolerance) < MIN_COORDINATES:
        return None
    unclipped = [1.0] * len(rows)
    factor = fit(list(records), samples, unclipped, tolerance).factor
    if factor is None:  # the ranks may send their models in half precision
        factor = fit(list(records), samples, unclipped, tolerances.SAMPLE_HALF).factor
    return None if factor is None else factor * len(rows)


def steps_on_changes(records: RecordsByRank) -> bool:
    """Whether an outer optimizer steps on the changes that inner steps made of the models, as in
    DiLoCo, and no backward belongs to this step alone."""
    rows = records.values()
    if any(r.skipped or r.repeat or r.models is None or not number(r.norm) for r in rows):
        return False
    claimed = all(m.claimed for r in rows for m in r.micro_batches)
    return claimed and model_average(records) is not None


def _become_equal(before: Rows, after: Rows) -> bool:
    """Whether parameters that differed became equal.

    A clamp or a norm of the weights changes them, too. What is clamped has one value or two.
    """
    columns = zip(zip(*before, strict=True), zip(*after, strict=True), strict=True)
    equal = {
        abs(now[0])
        for then, now in columns
        if are_equal(now, tolerances.REPLICAS) and not are_equal(then, tolerances.REPLICAS)
    }
    return len(equal) >= MIN_COORDINATES


def _at(indices: list[int], rows: Rows) -> Rows:
    return [[row[index] for index in indices] for row in rows]
