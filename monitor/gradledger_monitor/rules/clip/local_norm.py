"""clip.local_norm"""

from __future__ import annotations

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.clipping import clip_coefficient
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

FIX = """\
model.clip_grad_norm_(max_norm)      # of FSDP: the norm of the shards of all ranks
# FSDP2: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm) sees all shards"""

DIFFER = 0.01  # relative: rounding is far below


class LocalNorm(Rule):
    """Each rank clips its shard of the gradient by the norm of that shard alone.

    **What it sees**

    Each rank holds a shard of the gradient; the norms that the ranks clip with differ, and so do
    the factors that the ranks' gradients were multiplied by between the last backward and the
    step.

    **Why it matters**

    The norm of a shard is smaller than that of the whole gradient, so that the limit is too high;
    and each shard is scaled by another factor, so that the direction of the gradient changes.

    **What to do**

    Call ``clip_grad_norm_`` of the FSDP module, which adds up the norms of all ranks, and not
    ``torch.nn.utils.clip_grad_norm_``. FSDP2 has tensors that do so themselves.

    **When it is silent**

    Nothing was clipped; all ranks have one norm; the gradients are not sharded.

    **Incidents**

    textbook (the documentation of ``FullyShardedDataParallel.clip_grad_norm_``)
    """

    points_at = ("clip_norm",)

    def evaluate(self, window: Window) -> Outcome:
        """Norms and factors of the ranks that differ, of gradients in shards."""
        facts = window.facts
        if not facts.record.sharded:
            return not_applicable("the gradients are not sharded")
        if not facts.own_calls("clip_norm"):
            return not_applicable("the loop does not clip by norm")
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


def _last_clip(record: StepRecord) -> tuple[float, float, float] | None:
    """The norm, the coefficient and the measured factor of one rank."""
    clips = [event for event in record.events if event.op == "clip_norm" and event.own]
    norm = number(clips[-1].norm) if clips else None
    factor = number(record.post_factor)
    if norm is None or factor is None:
        return None
    return norm, clip_coefficient(clips[-1]), factor


def _differ(values: list[float]) -> bool:
    return max(values) > min(values) * (1 + DIFFER)
