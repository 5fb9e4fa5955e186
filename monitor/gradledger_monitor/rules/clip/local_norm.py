"""clip.local_norm"""

from __future__ import annotations

from typing import NamedTuple

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.clipping import clip_coefficient
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.manual_all_reduce import sum_of
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

FIX = """\
model.clip_grad_norm_(max_norm)      # of FSDP: the norm of the shards of all ranks
# FSDP2: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm) sees all shards"""

FIX_BY_HAND = """\
# Add up the squares of the norms of all shards with an all-reduce, and clip each shard by the root
# of the sum: multiply its gradients by max_norm / norm where that is below 1."""

DIFFER = 0.01  # relative: rounding is far below
EQUAL = 1e-4  # of the largest value: ranks that copied one gradient differ by rounding alone


FIX_OF_REPLICAS = """\
for p in model.parameters():
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)    # after it, what all step on"""


class LocalNorm(Rule):
    """Each rank clips by the norm of its part of the gradient alone.

    **What it sees**

    The norms that the ranks clip with differ, and some rank clips. Each rank holds a shard of the
    gradient, and the factors differ that the shards were multiplied by between the last backward
    and the step. Or the ranks hold replicas, and step on equal gradients, though those after the
    last backward differed: the loop has combined them after the clip.

    **Why it matters**

    The norm of a shard is smaller than that of the whole gradient, so that the limit is too high;
    and each shard is scaled by another factor, so that the direction of the gradient changes. Of
    replicas, the rank with the larger gradient counts less, and the norm of what is applied may be
    far below the limit.

    **What to do**

    Call ``clip_grad_norm_`` of the FSDP module, which adds up the norms of all ranks, and not
    ``torch.nn.utils.clip_grad_norm_``. FSDP2 has tensors that do so themselves. A loop that
    combines the gradients itself clips afterwards.

    **When it is silent**

    Nothing was clipped; all ranks have one norm; the gradients of replicas were not sampled on
    every rank, or the ranks step on different ones; what they step on is no multiple of the sum of
    the clipped gradients, or is one of the sum before the clip, too.

    **Incidents**

    textbook (the documentation of ``FullyShardedDataParallel.clip_grad_norm_``)
    """

    points_at = ("clip_norm",)

    def evaluate(self, window: Window) -> Outcome:
        """Norms that differ between the ranks, of shards or of replicas."""
        facts = window.facts
        if not facts.own_calls("clip_norm"):
            return not_applicable("the loop does not clip by norm")
        sharded = facts.record.sharded
        if not sharded and facts.run.world_size == 1:
            return not_applicable("one rank")
        clips = [_last_clip(record) for record in facts.records.values()]
        measured = [clip for clip in clips if clip is not None]
        factors = [number(record.post_factor) for record in facts.records.values()]
        incomplete = len(measured) < len(clips) or not facts.complete
        if incomplete or (sharded and None in factors):
            return not_measured("the norm or the factor of a clip was not recorded on every rank")
        if sharded:
            fix = FIX if facts.record.wrapper else FIX_BY_HAND
            return _of_shards(measured, [factor or 0.0 for factor in factors], fix)
        return _of_replicas(facts, measured)


class _Clip(NamedTuple):
    """The last clip of a rank: the norm, and what it multiplied the gradient by."""

    norm: float
    coefficient: float


def _of_shards(clips: list[_Clip], factors: list[float], fix: str) -> Outcome:
    """Norms and measured factors that differ, of gradients in shards."""
    norms = [clip.norm for clip in clips]
    if not _engaged(clips) or not _differ(norms) or not _differ(factors):
        return OK
    return finding(
        "error",
        "Each rank clips by the norm of its shard",
        f"The ranks hold shards of the gradient, and clip with norms of {significant(min(norms))} "
        f"to {significant(max(norms))}. So the shards are multiplied by different factors, and the "
        "norm of the whole gradient is at least the largest of these.",
        fix,
        norms=norms[:64],
        factors=[round(factor, 6) for factor in factors[:64]],
    )


def _of_replicas(facts: StepFacts, clips: list[_Clip]) -> Outcome:
    """Norms that differ, and equal gradients in the step."""
    samples = [record.samples for record in facts.records.values()]
    sampled = [sample for sample in samples if sample is not None]
    if len(sampled) < len(samples):
        return not_applicable("each rank steps on its gradient as it was after the last backward")
    norms = [clip.norm for clip in clips]
    before = [list(map(float, sample.after_backward)) for sample in sampled]
    at_step = [list(map(float, sample.at_step)) for sample in sampled]
    if not _are_equal(at_step) or _are_equal(before) or not _engaged(clips) or not _differ(norms):
        return OK
    # Ranks that combine first, and clip multiples of one gradient, step on equal ones, too.
    clipped = [[c.coefficient * v for v in row] for c, row in zip(clips, before, strict=True)]
    shown, also_before = (
        sum_of(rows, at_step[0], facts.tolerance).factor is not None for rows in (clipped, before)
    )
    if not shown or also_before:
        return OK
    return finding(
        "warning",
        "Each rank clips its gradient before the ranks' gradients are combined",
        f"The ranks clip with norms of {significant(min(norms))} to {significant(max(norms))}, and "
        "then step on one gradient, which the loop has combined after the clip. So the ranks have "
        "different weights, and the norm of what is applied is not what the limit was compared "
        "with.",
        FIX_OF_REPLICAS,
        norms=norms[:64],
        coefficients=[round(clip.coefficient, 6) for clip in clips[:64]],
    )


def _engaged(clips: list[_Clip]) -> bool:
    return any(clip.coefficient < 1 for clip in clips)


def _are_equal(samples: list[list[float]]) -> bool:
    """Whether all ranks have the same values, which are not all 0."""
    columns = list(zip(*samples, strict=False))
    largest = max((abs(value) for column in columns for value in column), default=0.0)
    return largest > 0 and all(max(c) - min(c) <= EQUAL * largest for c in columns)


def _last_clip(record: StepRecord) -> _Clip | None:
    """None if the rank has not clipped, or the norm was not recorded."""
    clips = [event for event in record.events if event.op == "clip_norm" and event.own]
    norm = number(clips[-1].norm) if clips else None
    return None if norm is None else _Clip(norm, clip_coefficient(clips[-1]))


def _differ(values: list[float]) -> bool:
    return max(values) > min(values) * (1 + DIFFER)
