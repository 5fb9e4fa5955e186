"""clip.local_norm"""

from __future__ import annotations

from gradledger_monitor.ingest.schema import Event, StepRecord
from gradledger_monitor.model.clipping import clip_coefficient
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

FIX = """\
model.clip_grad_norm_(max_norm)      # of FSDP: the norm of the shards of all ranks
# FSDP2: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm) sees all shards"""

DIFFER = 0.01  # relative: rounding is far below
EQUAL = 1e-4  # of the largest value: ranks that copied one gradient differ by rounding alone


FIX_OF_REPLICAS = """\
# first combine the gradients of the ranks, then clip what all of them step on:
for p in model.parameters():
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)"""


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
    every rank, or the ranks step on different ones.

    **Incidents**

    textbook (the documentation of ``FullyShardedDataParallel.clip_grad_norm_``)
    """

    points_at = ("clip_norm",)

    def evaluate(self, window: Window) -> Outcome:
        """Norms and factors of the ranks that differ, of gradients in shards."""
        facts = window.facts
        if not facts.own_calls("clip_norm"):
            return not_applicable("the loop does not clip by norm")
        if not facts.record.sharded:
            return _of_replicas(facts)
        clips = [_last_clip(record) for record in facts.records.values()]
        measured = [clip for clip in clips if clip is not None]
        if len(measured) < len(clips) or not facts.complete:
            return not_measured("the norm or the factor of a clip was not recorded on every rank")
        norms = [norm for norm, _, _ in measured]
        clipped = min(coefficient for _, coefficient, _ in measured) < 1
        if not clipped or not _differ(norms) or not _differ([factor for _, _, factor in measured]):
            return OK
        least, most = min(norms), max(norms)
        return finding(
            "error",
            "Each rank clips by the norm of its shard",
            f"The ranks hold shards of the gradient, and clip with norms of {significant(least)} "
            f"to {significant(most)}. So the shards are multiplied by different factors, and the "
            "norm of the whole gradient is at least the largest of these.",
            FIX,
            norms=norms[:64],
            factors=[round(factor, 6) for _, _, factor in measured[:64]],
        )


def _of_replicas(facts: StepFacts) -> Outcome:
    """Norms that differ, and equal gradients in the step."""
    if facts.run.world_size == 1:
        return not_applicable("one rank")
    clips = [_last_own_clip(record) for record in facts.records.values()]
    samples = [record.samples for record in facts.records.values()]
    measured = [clip for clip in clips if clip is not None and number(clip.norm) is not None]
    if len(measured) < len(clips) or not facts.complete:
        return not_measured("the norm of a clip was not recorded on every rank")
    if any(sample is None for sample in samples):
        return not_applicable("each rank steps on its gradient as it was after the last backward")
    at_step = [list(map(float, sample.at_step)) for sample in samples if sample is not None]
    before = [list(map(float, sample.after_backward)) for sample in samples if sample is not None]
    norms = [number(clip.norm) or 0.0 for clip in measured]
    coefficients = [clip_coefficient(clip) for clip in measured]
    combined = _are_equal(at_step) and not _are_equal(before)
    if not combined or min(coefficients) == 1 or not _differ(norms):
        return OK
    least, most = min(norms), max(norms)
    return finding(
        "warning",
        "Each rank clips its gradient before the ranks' gradients are combined",
        f"The ranks clip with norms of {significant(least)} to {significant(most)}, and then step "
        "on one gradient, which the loop has combined after the clip. So the ranks have different "
        "weights, and the norm of what is applied is not what the limit was compared with.",
        FIX_OF_REPLICAS,
        norms=norms[:64],
        coefficients=[round(coefficient, 6) for coefficient in coefficients[:64]],
    )


def _are_equal(samples: list[list[float]]) -> bool:
    """Whether all ranks have the same values, which are not all 0."""
    columns = list(zip(*samples, strict=False))
    largest = max((abs(value) for column in columns for value in column), default=0.0)
    return largest > 0 and all(max(c) - min(c) <= EQUAL * largest for c in columns)


def _last_own_clip(record: StepRecord) -> Event | None:
    clips = [event for event in record.events if event.op == "clip_norm" and event.own]
    return clips[-1] if clips else None


def _last_clip(record: StepRecord) -> tuple[float, float, float] | None:
    """The norm, the coefficient and the measured factor of one rank."""
    clip, factor = _last_own_clip(record), number(record.post_factor)
    norm = None if clip is None else number(clip.norm)
    if clip is None or norm is None or factor is None:
        return None
    return norm, clip_coefficient(clip), factor


def _differ(values: list[float]) -> bool:
    return max(values) > min(values) * (1 + DIFFER)
