"""ddp.wrong_microbatch_synced"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import COMBINED_GRADIENTS, names, norms_differ, synced
from gradledger_monitor.rules.definition import UNSTABLE
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured

FIX = """\
last = k == len(window) - 1                  # of this window, which may be a short one
model.require_backward_grad_sync = last      # before the forward
compute_loss(model(x), y).backward()"""

FIX_FSDP2 = """\
# of this window, which may be a short one; before the backward of micro-batch k:
model.set_requires_gradient_sync(k == len(window) - 1)
loss.backward()"""

EFFECTS = {
    "ddp": "stay on their rank, so the replicas step on different gradients",
    "fsdp2": "stay in buffers outside .grad, until a later window adds them to its own",
}


FIX_BY_HAND = """\
for batch in window:
    compute_loss(model, batch).backward()
for parameter in model.parameters():    # after the last backward
    dist.all_reduce(parameter.grad)
    parameter.grad *= factor            # as before
optimizer.step()"""


class WrongMicrobatchSynced(Rule):
    """Gradients are synchronised on an early micro-batch but not on the last one.

    **What it sees**

    A gradient collective in an earlier backward of the window, and none in the last one. Without a
    wrapper: collectives before the last backward, or in one before it, made the ranks' accumulated
    gradients equal, and none did so after it.

    **Why it matters**

    Gradients that are accumulated after the synchronisation stay on their rank: the replicas
    step on different gradients and drift apart. The number of all-reduces is right, so profiles
    and logs show nothing unusual. FSDP2 adds such gradients to those of the next window.

    **What to do**

    DDP reads ``require_backward_grad_sync`` in forward, not in backward: set the flag, or enter
    ``no_sync()``, before the forward of the micro-batch. An all-reduce by hand belongs after the
    last backward.

    **When it is silent**

    The last micro-batch synchronises; the loop runs collectives between backward and step.

    **Incidents**

    karpathy/build-nanogpt#30, modelscope/FunASR#3472
    """

    points_at = ("backward",)
    inhibits = ("ddp.replica_drift", *UNSTABLE)

    precondition = COMBINED_GRADIENTS

    def evaluate(self, window: Window) -> Outcome:
        """Synchronised early, not at the end."""
        facts = window.facts
        record = facts.record
        if facts.all_reduce is not None and facts.all_reduce.early:
            return _by_hand(facts.all_reduce.early, len(record.micro_batches))
        if facts.micro_batches < 2 or record.skipped or facts.is_of_changes:
            return OK
        if record.wrapper is None and facts.all_reduce and not facts.all_reduce.is_combined:
            return not_measured(facts.all_reduce.reason)
        if _may_be_combined(facts):
            return OK
        by_rank = {rank: _only_early(facts, rank) for rank in facts.records}
        early = next(filter(None, by_rank.values()), None)
        if early is None or record.wrapper not in EFFECTS:
            return OK
        synchronised, count = early
        alike = [rank for rank, each in by_rank.items() if each == early]
        some = len(alike) < len(by_rank)
        which = f"On {names(alike).lower()}, gradients" if some else "Gradients"
        return finding(
            "error",
            f"Micro-batch {synchronised[-1]} is synchronised, the last one is not",
            f"{which} were synchronised in the backward of micro-batch {synchronised[-1]} of "
            f"{count}. The gradients of "
            f"{counted(count - synchronised[-1], 'later micro-batch')} {EFFECTS[record.wrapper]}.",
            FIX_FSDP2 if record.wrapper == "fsdp2" else FIX,
            synchronised=synchronised,
            micro_batches=count,
        )


def _only_early(facts: StepFacts, rank: int) -> tuple[list[int], int] | None:
    """Which micro-batches a rank synchronised, of how many; None if none, or also the last.

    Both count from the first whose gradients the step applied.
    """
    record, applied = facts.records[rank], facts.applied_by_rank[rank]
    numbers = [number for number, (_, m) in enumerate(applied, 1) if synced(record, m)]
    count = len(applied)
    return None if not numbers or count in numbers else (numbers, count)


def _may_be_combined(facts: StepFacts) -> bool:
    """Whether collectives after backward may have combined the gradients; not FSDP2's.

    What FSDP2 did not reduce is outside ``.grad``, where neither the loop nor clipping sees it.
    """
    record = facts.record
    return bool(record.collectives_after) and record.wrapper != "fsdp2" and not norms_differ(facts)


def _by_hand(early: int, micro_batches: int) -> Outcome:
    later = counted(micro_batches - early, "later micro-batch")
    return finding(
        "error",
        f"Gradients are combined after micro-batch {early} of {micro_batches}, not after the last",
        f"An all-reduce before the last backward combined the gradients of {early} of the "
        f"{counted(micro_batches, 'micro-batch')}. The gradients of {later} stay on their rank, so "
        "the ranks step on different gradients.",
        FIX_BY_HAND,
        synchronised=[early],
        micro_batches=micro_batches,
    )
