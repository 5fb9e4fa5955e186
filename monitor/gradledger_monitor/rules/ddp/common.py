"""Shared by the rules on data parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradledger_monitor.ingest.schema import MicroBatch, StepRecord
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.manual_all_reduce import MORE_THAN_ONCE
from gradledger_monitor.model.ranks.norms import norm_before_clipping
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.rule import OK, Precondition, Window, not_applicable, not_measured


def _not_parallel(window: Window) -> Outcome | None:
    """The outcome for one rank, or where collectives were not counted."""
    facts = window.facts
    if facts.run.world_size == 1:
        alone = facts.ranks == range(1)
        return not_applicable("one rank" if alone else "no other rank trains the same part")
    for record in facts.records.values():
        if "collectives" in record.missing:
            return not_measured(record.missing["collectives"])
    return None


def _without_models(window: Window) -> Outcome | None:
    """The same; at the end of the process, unless the ranks' models have changed since the step."""
    facts = window.facts
    if facts.record.left_open is None:
        return _not_parallel(window)
    return NO_STEP if facts.exchange is None else None


def _without_stages(window: Window) -> Outcome | None:
    """The same, unless other ranks hold earlier stages of a pipeline, or parts of a model."""
    run = window.facts.run
    several = run.earlier_stages or run.parts or run.tensor_peers
    parts = window.facts.record.left_open is None and several
    return None if parts else _without_models(window)


def combines_nothing(facts: StepFacts) -> bool:
    """Whether ranks without a wrapper communicate nothing that may combine their gradients.

    An average of equal gradients leaves them as they are.
    """
    records = facts.records.values()
    if facts.record.wrapper is not None or facts.all_reduce is not None:
        return False
    silent = not any(record.collectives_after for record in records) or norms_differ(facts)
    return silent and all(record.sync == "none" for record in records)


def _not_combined(window: Window) -> Outcome | None:
    """The outcome for one rank, or for ranks that are not seen to combine gradients."""
    facts, records = window.facts, window.facts.records.values()
    unmet = _not_parallel(window)
    if unmet or facts.missing_ranks or facts.record.wrapper or facts.all_reduce is not None:
        return unmet
    if combines_nothing(facts):
        return not_applicable(NOT_COMBINED)
    alone = all(record.sync == "none" for record in records)
    return not_applicable(NOT_SEEN_TO_COMBINE) if alone else None


NOT_COMBINED = "no wrapper and no collective combines the gradients of the ranks"
NOT_SEEN_TO_COMBINE = (
    "no wrapper combines the gradients of the ranks, and no collective is seen to combine them"
)
NO_STEP = not_applicable("no step, and no change of the models")
SEVERAL_RANKS_TO_THE_END = Precondition(
    "several ranks train together, or average their models at the end", _without_models, ended=True
)
SEVERAL_RANKS_OR_STAGES = Precondition(
    "several ranks train together, also as stages", _without_stages, ended=True
)
SEVERAL_RANKS = Precondition("several ranks train together", _not_parallel)
COMBINED_GRADIENTS = Precondition("several ranks may combine their gradients", _not_combined)


def of_shards(facts: StepFacts) -> Outcome:
    """The outcome of rules on replicas where each rank holds a shard of the gradients.

    A wrapper that shards has no replicas. Ranks that share out the parameters by hand, as in ZeRO,
    have equal models where it is known how they combined the gradients.
    """
    combined = facts.all_reduce
    by_hand = facts.record.wrapper is None and combined is not None and combined.is_known
    return OK if by_hand and not facts.missing_ranks else not_applicable("no DDP model")


def synced(record: StepRecord, micro_batch: MicroBatch) -> bool:
    """Whether this backward synchronised gradients; it may run other collectives, too."""
    if not micro_batch.collectives:
        return False
    if record.wrapper == "ddp" or micro_batch.wrapper is not None:
        return micro_batch.wrapper == "sync"
    return record.wrapper is not None


def synced_beside(facts: StepFacts) -> bool:
    """Whether DDP synchronised in this window on all ranks, and nothing communicated after it."""
    return all(
        record.sync != "averaged"
        and not (record.skipped or record.averaging or record.collectives_after)
        and any(m.wrapper == "sync" and m.collectives for m in record.micro_batches)
        for record in facts.records.values()
    )


def all_reduce_once(facts: StepFacts) -> bool:
    """Whether each rank all-reduced as many numbers before the step as the gradients have."""
    reduced = [number(record.reduced_share) or 0.0 for record in facts.records.values()]
    return all(1 <= share < MORE_THAN_ONCE for share in reduced)


def may_be_divided(facts: StepFacts) -> bool:
    """Whether ranks without a wrapper may be those of model parallelism, and hold no replicas.

    Its signs: collectives inside backward, a rank without a loss, or equal losses on all ranks.
    Where hooks of the parameters are seen to combine gradients, the collectives are theirs.
    """
    if not _by_hooks(facts) and any(
        m.collectives for record in facts.records.values() for m in record.micro_batches
    ):
        return True
    ranks = list(facts.applied_by_rank.values())
    if not all(applied and all(m.terms for _, m in applied) for applied in ranks):
        return True
    losses = [[number(m.loss) for _, m in applied] for applied in ranks]
    return all(each == losses[0] for each in losses)


def finite_values(facts: StepFacts, name: str) -> list[float]:
    """A number of the record of each rank, where it is known and finite."""
    values = [number(getattr(record, name)) for record in facts.records.values()]
    return [v for v in values if v is not None and math.isfinite(v)]


def unwaited(facts: StepFacts) -> list[float]:
    """The gradients that the ranks all-reduce without a wait, as shares of all, where any are."""
    shares = [number(record.unwaited_share) or 0.0 for record in facts.records.values()]
    return [share for share in shares if share]


def norms_differ(facts: StepFacts) -> bool:
    """Whether the norms of the ranks' gradients are known and differ: nothing combined these."""
    if any("norm" in record.missing for record in facts.records.values()):
        return False
    norms = [norm_before_clipping(record) or 0.0 for record in facts.records.values()]
    return max(norms) - min(norms) > facts.tolerance * max(norms)


def norms_are_same_bits(facts: StepFacts) -> bool:
    """Whether the ranks' gradients may be equal bit by bit, as after an all-reduce."""
    return len(set(finite_values(facts, "norm"))) <= 1


def norms_by_rank(facts: StepFacts) -> dict[str, float | None]:
    """The norms of the gradients before clipping, which sets many of them to its limit."""
    return {str(r): norm_before_clipping(each) for r, each in list(facts.records.items())[:16]}


def hook_combines_nothing(facts: StepFacts) -> bool:
    """Whether each rank steps on the gradients that its comm hook received, up to a factor."""
    hooked = all(r.before_hooks and r.wrapper == "ddp" for r in facts.records.values())
    return hooked and facts.record.sync == "none" and norms_differ(facts)


def _by_hooks(facts: StepFacts) -> bool:
    """Whether the gradients were combined by the end of backward: nothing communicated later."""
    combined = facts.all_reduce is not None and facts.all_reduce.is_combined
    return combined and all(
        record.before_hooks and not record.collectives_after for record in facts.records.values()
    )


def names(ranks: Sequence[int]) -> str:
    """The first ranks of a list, with their noun: ``Ranks 1, 2``."""
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"Rank {shown}" if len(ranks) == 1 else f"Ranks {shown}"
