"""How a loop that synchronises gradients itself combined them, inferred from samples of each rank.

DDP and FSDP average. Of a loop that all-reduces after backward, or gives DDP its own comm hook,
this needs a proof: each rank sends a few gradient coordinates as its last backward left them
(``after_backward``) and as the optimizer received them (``at_step``). Rank r's sample is ``x_r``
after backward and ``y_r`` at the step, with clipping by norm divided out. The ranks combined their
gradients if

    y_r is the same on every rank, and        y = c * (sum of x_r over the ranks)

for one number c over all coordinates. c = 1/R is an average, c = 1 a sum. A loop may also weigh
the ranks, for example by their tokens: then ``y`` is the sum of ``c_r * x_r``.

Beside a DDP or FSDP2 model, parameters outside the wrapper may be combined by the loop: see
``outside_wrapper``.

If the ``y_r`` differ, the samples may still prove that the loop combines gradients, and what it did
to replicas: ``ManualAllReduce`` lists the cases.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gradledger_monitor.ingest.schema import Samples, StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.clipping import clipping_of_window
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks import held_in_parts
from gradledger_monitor.model.ranks.norms import norms_are_equal, norms_differ
from gradledger_monitor.model.ranks.of_one_rank import factors_of_one
from gradledger_monitor.model.ranks.rows import (
    MIN_COORDINATES,
    Rows,
    are_equal,
    clusters_of,
    common_scales,
    count_combined,
    values_of,
)
from gradledger_monitor.model.ranks.weighted_sum import (
    NO_SUM,
    LeftOut,
    least_squares,
    of_each_coordinate,
    rank_factors,
    rank_left_out,
    two_factors,
)
from gradledger_monitor.model.token_ledger import total

UNSEEN = "how the ranks' gradients were combined was not seen"
# A rank may take its parameters from another one: its own gradient is then of no effect.
DIFFERENT = "the ranks step on different gradients, or each on other parameters"
CLIPPED_FIRST = (
    "each rank clipped its gradients by another factor before the loop combined them, so the "
    "ranks have different weights"
)
CLIPPED_APART = (
    "each rank clipped by another factor, and yet the ranks' gradients are equal when the "
    "parameters are updated"
)
OF_PARTS = (
    "the optimizers of the ranks hold different parameters, as in ZeRO, and each rank samples "
    "these alone: by what the sums of gradients over the ranks are multiplied is not known"
)
SEVERAL = (
    "the loop communicates in several backwards of a window, and what the ranks step on is no sum "
    "of their last gradients"
)
COMBINED_ANEW = "gradients were combined anew on top of combined ones"

RecordsByRank = dict[int, StepRecord]

# ``reduced_share`` of a loop that all-reduces some gradients twice; less is for a log, or padding
MORE_THAN_ONCE = 1.02


@dataclass(frozen=True)
class ManualAllReduce:
    """``factor`` is c, or ``factors`` are the c_r in the order of the ranks.

    If neither is known, ``reason`` is why. The others state how the gradients of the ranks were
    combined although the ranks step on different ones.
    """

    factor: float | None = None
    factors: tuple[float, ...] = ()
    reason: str = ""
    # The first micro-batches of the window: their gradients were combined, later ones were not.
    early: int = 0
    # The ranks, by the gradient that they step on: within a group, a sum of the group's.
    groups: tuple[tuple[int, ...], ...] = ()
    # Each rank steps on the same sum, times its own factor: the factors relative to the first rank.
    scales: tuple[float, ...] = ()
    # Between backwards, the sum over the ranks was taken of gradients that were such sums already:
    # what each time multiplied these, and how often.
    again: float = 1.0
    times: int = 0
    repeats: int = 0  # how often they were combined before the last time, without any effect
    # By what the sum is multiplied in some parameters, and in others: numbers that no loop intends.
    unequal: tuple[float, ...] = ()
    # Ranks that hold copies of other parameters than the remaining ones, beside those of all ranks.
    parts: tuple[tuple[int, ...], ...] = ()
    operation: str = ""  # of each coordinate over the ranks, instead of a sum: "maximum"
    left_out: LeftOut | None = None  # the rank that is not in the sum of some coordinates
    partly: bool = False  # some coordinates were combined, and others were not
    of_owners: float = 0.0  # the share of a model that its holders step on their own gradients
    moved: bool = False  # of gradients that the loop keeps in its own buffers until the step
    of_groups: int = 0  # how many groups of ranks it combined, over each of which DDP averages
    rounded: bool = False  # up to the errors of fp16 or bf16: the loop sends gradients in these

    @property
    def is_combined(self) -> bool:
        """Whether the loop is known to combine gradients of the ranks, in whatever way."""
        partly = self.partly or bool(self.early or self.groups or self.scales or self.unequal)
        return partly or self.is_known or self.is_no_sum

    @property
    def is_no_sum(self) -> bool:
        """Whether it is known what the ranks step on instead of a sum of their gradients."""
        return bool(self.operation) or self.left_out is not None

    @property
    def is_known(self) -> bool:
        """Whether all ranks step on a sum of their gradients with known factors."""
        return self.factor is not None or bool(self.factors)

    @property
    def is_one_factor(self) -> bool:
        """Whether a number that is not known multiplies the gradients of all micro-batches."""
        return not (self.is_known or self.early or self.reason in (SEVERAL, COMBINED_ANEW))

    def factors_of(self, ranks: int) -> tuple[float, ...]:
        """The factor of each of ``ranks`` ranks."""
        return self.factors or (self.factor or 0.0,) * ranks


def infer(records: RecordsByRank) -> ManualAllReduce | None:
    """What the loop did, from the records of all ranks; None if it combined nothing itself."""
    rows = list(records.values())
    early = _combined_early(rows)
    if all(r.sync != "unknown" for r in rows) or _only_scaled(rows):
        if early and norms_differ(rows):
            return ManualAllReduce(reason=DIFFERENT, early=early)
        return None
    active = [r for r in rows if r.micro_batches and not _has_zeros(r)]
    if len(active) == 1 < len(rows) and norms_are_equal(rows):  # the others add zeros
        factor = number(active[0].post_factor)
        return ManualAllReduce(factor and factor / clipping_of_window(active[0]), reason=UNSEEN)
    samples = _samples_of(rows)
    late = any(map(_sampled_late, rows))
    if late or len(samples) < len(rows):
        taken_over = () if late else factors_of_one(rows, tolerance_of(rows))
        reason = "" if taken_over else held_in_parts.inside_backward(rows) or UNSEEN
        return ManualAllReduce(factors=taken_over, reason=reason)
    tolerance = tolerance_of(rows)
    clippings = list(map(clipping_of_window, rows))
    result = fit(list(records), samples, clippings, tolerance)
    if not result.is_combined and all(sample.with_cleared for sample in samples):
        totals = [replace(sample, after_backward=sample.with_cleared) for sample in samples]
        moved = fit(list(records), totals, clippings, tolerance)
        if moved.is_combined:
            return dataclasses.replace(moved, moved=True)
    if not result.is_combined:
        rough = fit(list(records), samples, clippings, tolerances.SAMPLE_HALF)
        if rough.factor is not None:
            result, tolerance = dataclasses.replace(rough, rounded=True), tolerances.SAMPLE_HALF
    if result.unequal and not all(map(_reduces_twice, rows)):
        result = dataclasses.replace(result, unequal=())  # such as a factor for some parameters
    if result.reason == DIFFERENT and are_equal(clippings, tolerance):  # else all copies drift
        result = _by_parts(records, samples, clippings, tolerance) or result
    if not result.is_known:
        other = held_in_parts.hold_different(r.replica for r in rows)
        if other and result == ManualAllReduce(reason=result.reason):
            return ManualAllReduce(reason=OF_PARTS)
        return _unknown_after_early(result, rows, early)
    if all(r.own_sums for r in rows):  # one sum of what each rank has computed: nothing is anew
        return dataclasses.replace(result, repeats=_count_early(rows))
    if not early and not any(map(_synced_twice, rows)):
        return result
    between = [] if result.factor is None else _factors_between(rows, tolerance)
    averages = result.factor is not None and abs(result.factor * len(rows) - 1) <= tolerance
    if averages if not between else all(abs(each - 1) <= tolerance for each in between):
        # an average of equal gradients leaves them as they are
        return dataclasses.replace(result, repeats=_count_early(rows))
    same = bool(between) and are_equal(between, tolerance)
    again, times = (between[0], len(between)) if same else (1.0, 0)
    return ManualAllReduce(reason=COMBINED_ANEW, again=again, times=times)


def _samples_of(rows: Sequence[StepRecord]) -> list[Samples]:
    """Of the ranks that have some; a rank without a backward adds zeros to what all step on."""
    samples = [r.samples for r in rows if r.samples is not None]
    if not (samples and all(r.samples or not r.micro_batches for r in rows)):
        return samples
    at_step = samples[0].at_step
    zeros = Samples(after_backward=[0.0] * len(at_step), at_step=at_step)
    return [r.samples or zeros for r in rows] if norms_are_equal(rows) else samples


def _has_zeros(record: StepRecord) -> bool:
    """Whether each loss of the rank is multiplied by zero, and so are its sampled gradients."""
    losses = [number(t.weight) == 0 for m in record.micro_batches for t in m.terms]
    sampled = record.samples is not None and not any(map(float, record.samples.after_backward))
    return sampled and bool(losses) and all(losses)


def _sampled_late(record: StepRecord) -> bool:
    """Whether hooks of the last backward may have divided or combined what was sampled after it.

    So it is in the first window of a loop without a wrapper, whose backward communicates.
    """
    last = record.micro_batches[-1] if record.micro_batches else None
    inside = last is not None and bool(last.collectives)
    return inside and record.wrapper is None and not record.before_hooks


def _reduces_twice(record: StepRecord) -> bool:
    return (number(record.reduced_share) or 0.0) > MORE_THAN_ONCE


def _unknown_after_early(
    result: ManualAllReduce, rows: Sequence[StepRecord], early: int
) -> ManualAllReduce:
    """What an all-reduce after an early micro-batch shows of gradients that are no sum at last."""
    if any(r.wrapper for r in rows):
        return result
    if result.reason == NO_SUM and (early or any(map(_synced_twice, rows))):
        return ManualAllReduce(reason=COMBINED_ANEW if early else SEVERAL)
    later = (m.collectives for r in rows for m in r.micro_batches[early:])
    communicates = any(later) or any(r.collectives_after for r in rows)
    if early and not communicates and result == ManualAllReduce(reason=DIFFERENT):
        return dataclasses.replace(result, early=early)
    return result


def as_averaged(records: RecordsByRank, all_reduce: ManualAllReduce | None) -> RecordsByRank:
    """The records as if DDP had averaged and ``post_factor`` were the rest, c * R.

    If the loop combined nothing, each rank stepped on its own gradients: ``sync`` is "none" then.
    """
    if all_reduce is None:
        if _only_scaled(records.values()):
            return {rank: replace(r, sync="none") for rank, r in records.items()}
        return records
    if all_reduce.moved:
        records = {rank: _as_accumulated(record) for rank, record in records.items()}
    if not all_reduce.is_known:
        return records
    factors = all_reduce.factors_of(len(records))
    averages = all(abs(f * len(records) - 1) <= tolerances.SAMPLE for f in factors)
    return {
        rank: replace(
            r,
            sync="averaged",
            missing=_without_sync(r) if averages else r.missing,
            post_factor=factor * len(records) * clipping_of_window(r),
            half_precision=r.half_precision or all_reduce.rounded,
        )
        for (rank, r), factor in zip(records.items(), factors, strict=True)
    }


def _without_sync(record: StepRecord) -> dict[str, str]:
    """Without that a step communicates out of sight: under DDP, too, it may share out its work.

    Gradients that were averaged before the step are equal on all ranks, and it leaves them so.
    """
    if record.tensor_group or record.pipeline:
        return record.missing
    return {fact: reason for fact, reason in record.missing.items() if fact != "sync"}


def _as_accumulated(record: StepRecord) -> StepRecord:
    """As if the gradients of the window had stayed in ``.grad``."""
    micro_batches = [
        replace(each, fresh=each.fresh and not i) for i, each in enumerate(record.micro_batches)
    ]
    return replace(record, moved=True, micro_batches=micro_batches)


def tolerance_of(rows: Sequence[StepRecord]) -> float:
    """The relative error of the samples of these ranks."""
    half = any(r.half_precision for r in rows)
    return tolerances.SAMPLE_HALF if half else tolerances.SAMPLE


def _only_scaled(rows: Iterable[StepRecord]) -> bool:
    """Collectives ran after backward, and yet every rank only scaled its own gradients.

    They may have reduced a loss for a log. If all ranks had equal gradients, they may also have
    combined them, which gives the same weights. A comm hook of DDP may combine nothing, either,
    which is known of the last backward alone.
    """
    listed = list(rows)
    own = [r for r in listed if not (r.before_hooks and _is_last_synced(r))]
    inside = any(m.collectives for r in own for m in r.micro_batches)
    factors = [number(r.post_factor) for r in listed if r.sync == "unknown"]
    return bool(factors) and not inside and all(f and math.isfinite(f) for f in factors)


def _is_last_synced(record: StepRecord) -> bool:
    last = record.micro_batches[-1:]
    return record.wrapper == "ddp" and any(m.wrapper == "sync" for m in last)


def _synced_twice(record: StepRecord) -> bool:
    """Whether a hook ran on already combined gradients: harmless only for an average."""
    if record.own_sums:
        return False  # a sum of sums would not fit
    if record.wrapper is None and record.before_hooks:
        return sum(bool(m.collectives) for m in record.micro_batches) > 1
    return sum(m.wrapper == "sync" for m in record.micro_batches) > 1


def _combined_early(rows: Sequence[StepRecord]) -> int:
    """After how many micro-batches, but before the last, all ranks had the same gradient; else 0.

    Only if the ranks' own gradients were different before: equal ones need no all-reduce.
    """
    return next((i for i in reversed(_since_cleared(rows)) if _combines_before(rows, i)), 0)


def _count_early(rows: Sequence[StepRecord]) -> int:
    """How often the gradients were combined before the last backward had ended."""
    return sum(_combines_before(rows, i) for i in _since_cleared(rows))


def _since_cleared(rows: Sequence[StepRecord]) -> range:
    """The micro-batches that add to gradients of the window: what it discarded before is lost."""
    cleared = (i for r in rows for i, m in enumerate(r.micro_batches) if m.fresh)
    return range(max(cleared, default=0) + 1, min(len(r.micro_batches) for r in rows))


def _combines_before(rows: Sequence[StepRecord], index: int) -> bool:
    tolerance = tolerance_of(rows)
    equalised = _equalised_before(rows, index, tolerance)
    return bool(equalised and count_combined(*equalised, tolerance) >= MIN_COORDINATES)


def _equalised_before(
    rows: Sequence[StepRecord], index: int, tolerance: float
) -> tuple[Rows, Rows] | None:
    """The gradients before and after what made them equal on all ranks between two backwards.

    None if they are not equal when micro-batch ``index`` begins, or were not sampled.
    """
    samples = [s for r in rows if (s := r.micro_batches[index].samples) is not None]
    before, after = values_of(samples)
    if len(samples) < len(rows) or len({len(values) for values in before + after}) != 1:
        return None
    equal = all(are_equal(each, tolerance) for each in zip(*after, strict=True))
    return (before, after) if equal else None


def _factors_between(rows: Sequence[StepRecord], tolerance: float) -> list[float]:
    """What each combination between two backwards multiplied gradients by that were equal before.

    A sum multiplies them by the number of ranks, an average by 1. Empty if one is of another kind.
    """
    factors = []
    for index in _since_cleared(rows):
        if all(row.micro_batches[index].samples is None for row in rows):
            continue  # nothing was combined there
        equalised = _equalised_before(rows, index, tolerance)
        if equalised is None:
            return []
        before, (combined, *_) = equalised
        factor = sum_of(before, combined, tolerance).factor
        if factor is None:
            return []
        factors.append(factor * len(rows))
    return factors


def fit(
    ranks: list[int], samples: list[Samples], clippings: list[float], tolerance: float
) -> ManualAllReduce:
    """c from the samples of each rank; the first test that fails gives the reason."""
    after_backward, at_step = values_of(samples)
    if len({len(values) for values in after_backward + at_step}) != 1:
        return ManualAllReduce(reason="the ranks sampled the gradients of different parameters")
    if not all(math.isfinite(v) for values in after_backward + at_step for v in values):
        return ManualAllReduce(reason="the sampled gradients are not finite")
    applied = [[v / c for v in values] for values, c in zip(at_step, clippings, strict=True)]
    if not _equal_rows(applied, tolerance):
        if _equal_rows(at_step, tolerance) and any(at_step[0]):
            clipped = [[v * c for v in x] for x, c in zip(after_backward, clippings, strict=True)]
            fits = sum_of(clipped, at_step[0], tolerance).factor is not None
            return ManualAllReduce(reason=CLIPPED_FIRST if fits else CLIPPED_APART)
        return _difference(ranks, after_backward, applied, tolerance)
    at_step = applied
    result = sum_of(after_backward, at_step[0], tolerance)
    if result.reason == NO_SUM:
        factors = rank_factors(after_backward, at_step[0], tolerance, MIN_COORDINATES)
        if not factors:
            return _no_sum(ranks, after_backward, at_step[0], tolerance)
        return ManualAllReduce(factors=factors)
    return result


def _no_sum(
    ranks: list[int], before: Rows, applied: list[float], tolerance: float
) -> ManualAllReduce:
    """No sum of all with one factor; perhaps one for some parameters, and another for the rest."""
    operation = of_each_coordinate(before, applied, tolerance, MIN_COORDINATES)
    if operation:
        return ManualAllReduce(reason=NO_SUM, operation=operation)
    silent = rank_left_out(before, applied, tolerance, MIN_COORDINATES)
    if silent is not None:
        return ManualAllReduce(reason=NO_SUM, left_out=silent._replace(rank=ranks[silent.rank]))
    factors = two_factors(before, applied, tolerance, MIN_COORDINATES)
    if factors is None:
        return ManualAllReduce(reason=NO_SUM)
    low, high = factors
    twice = abs(high / low / len(before) - 1) <= tolerance
    return ManualAllReduce(
        reason=f"the sum of the ranks' gradients is multiplied by {high:.4g} in some parameters "
        f"and by {low:.4g} in others"
        + (
            "; an all-reduce that has some of them twice does so, as does a factor" if twice else ""
        ),
        unequal=factors if twice else (),
    )


def _by_parts(
    records: RecordsByRank,
    samples: list[Samples],
    clippings: list[float],
    tolerance: float,
) -> ManualAllReduce | None:
    """What was done to parameters of all ranks and to those that groups hold; None if unproved.

    If the ranks do not exchange activations, the tokens of a group alone make its gradients,
    which a loop may mean to divide by another number.
    """
    before, at_step = values_of(samples)
    applied = [[v / c for v in row] for row, c in zip(at_step, clippings, strict=True)]
    exchange = held_in_parts.exchange_activations(list(records.values()))
    ranks, least = list(records), 1 if exchange and held_in_parts.exchange_tokens(records) else 2
    parts = held_in_parts.parts_of(
        before, applied, tolerance, lambda b, a: sum_of(b, a, tolerance).factor, least
    )
    if parts is None:
        return None
    groups = tuple(tuple(ranks[i] for i in group) for group in parts.groups)
    if are_equal([parts.of_all, parts.of_groups], tolerance):
        return ManualAllReduce(factor=parts.of_all, parts=groups, partly=not exchange)
    if not exchange:
        return None
    counts = (len(ranks), len(groups), len(groups[0]))
    ratio = parts.of_groups / parts.of_all
    by_count = any(abs(ratio / n - 1) <= tolerance for c in counts for n in (c, 1 / c))
    return ManualAllReduce(
        reason=f"the sum of the ranks' gradients is multiplied by {parts.of_all:.4g} in parameters "
        f"that all ranks hold, and by {parts.of_groups:.4g} in those of groups of ranks",
        unequal=(parts.of_all, parts.of_groups) if by_count else (),
        parts=groups,
    )


def _equal_rows(rows: Rows, tolerance: float) -> bool:
    """Whether all ranks have the same coordinates."""
    return all(are_equal(coordinate, tolerance) for coordinate in zip(*rows, strict=True))


def _difference(ranks: list[int], before: Rows, applied: Rows, tolerance: float) -> ManualAllReduce:
    """How the ranks combined their gradients, if they did, although they step on different ones."""
    scales, combined = common_scales(before, applied, tolerance)
    if combined and combined < sum(map(any, zip(*applied, strict=True))):
        scaled = not are_equal(scales, tolerance)
        return ManualAllReduce(reason=DIFFERENT, partly=True, scales=scales if scaled else ())
    if combined and sum_of(before, applied[0], tolerance).factor is not None:
        return ManualAllReduce(reason=DIFFERENT, scales=scales)
    clusters = clusters_of(applied, tolerance)
    shared = [cluster for cluster in clusters if len(cluster) > 1]
    sums = [sum_of([before[i] for i in c], applied[c[0]], tolerance) for c in shared]
    if sums and len(clusters) > 1 and all(each.factor is not None for each in sums):
        groups = tuple(tuple(ranks[i] for i in cluster) for cluster in clusters)
        return ManualAllReduce(reason=DIFFERENT, groups=groups)
    return ManualAllReduce(reason=DIFFERENT)


def sum_of(before: Rows, applied: list[float], tolerance: float) -> ManualAllReduce:
    """c, if ``applied`` is c times the sum of the rows ``before``."""
    sums = [total(values) for values in zip(*before, strict=True)]
    sizes = [total(map(abs, values)) for values in zip(*before, strict=True)]
    if not all(map(math.isfinite, sizes)):
        return ManualAllReduce(reason="the sampled gradients are too large to add up")
    if sum(map(bool, sizes)) < MIN_COORDINATES:
        return ManualAllReduce(reason="too few of the sampled gradients are not zero")
    factor, reason = least_squares(applied, sums, sizes, tolerance)
    return ManualAllReduce(factor, reason=reason)
