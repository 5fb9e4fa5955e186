"""ddp.missing_no_sync"""

from __future__ import annotations

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.ranks.manual_all_reduce import ManualAllReduce
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import COMBINED_GRADIENTS, synced
from gradledger_monitor.rules.ddp.wrong_microbatch_synced import FIX_BY_HAND, FIX_FSDP2
from gradledger_monitor.rules.number_text import counted, data_size, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured, ok

FIX = """\
# with DDP(static_graph=True), synchronise the whole first window: no_sync() raises an error there
last = i == len(window) - 1                   # of this window, which may be a short one
with contextlib.nullcontext() if last else model.no_sync():
    compute_loss(model(x), y).backward()      # forward also under no_sync()"""

IN_PART = (
    "Some ran fewer collectives than the last backward, as where no_sync() or accumulate() has one "
    "of several wrapped models. "
)


class MissingNoSync(Rule):
    """Gradients are synchronised on every micro-batch, not only on the last one.

    **What it sees**

    Gradient collectives in the backward of micro-batches before the last one of a window. It is an
    error if the loop adds up the gradients of the ranks itself, between backwards, too: samples of
    the gradients before and after show that sums were added up again.

    **Why it matters**

    With plain DDP the gradient is the same, but the ranks send all gradients several times per
    step instead of once, and wait for each other each time. A sum over R ranks that is taken of
    ``.grad`` after each backward multiplies what earlier micro-batches left there by R each time.

    **What to do**

    Run forward and backward of all but the last micro-batch under ``model.no_sync()``. Around
    backward alone it has no effect: DDP reads the flag in forward. With ``static_graph=True``, DDP
    raises an error if the first backward of the run is under ``no_sync()``: synchronise every
    micro-batch of the first window.

    **When it is silent**

    K = 1; the first window, in which DDP rebuilds its buckets; one rank; backwards on which another
    optimizer has stepped: it has the finding, or needs what was synchronised. Under FSDP,
    synchronising each time saves memory, so the finding is information; so it is where backward
    runs once for each of several tasks, or for real and fake data, and where a loop without a
    wrapper combines gradients after each backward, to the same effect.

    **Incidents**

    huggingface/accelerate#106, facebookresearch/ClassyVision#706,
    KellerJordan/modded-nanogpt#31, kohya-ss/sd-scripts#1064
    """

    points_at = ("backward",)
    precondition = COMBINED_GRADIENTS

    def evaluate(self, window: Window) -> Outcome:
        """Synchronised micro-batches before the last, which is synchronised too."""
        facts = window.facts
        record = facts.record
        if facts.all_reduce is not None and facts.all_reduce.times:
            return _added_again(facts, facts.all_reduce)
        if facts.micro_batches < 2:
            return OK
        if all(m.claimed for _, m in facts.applied[:-1]):
            return ok("another optimizer has stepped on the backwards before the last")
        if record.wrapper is None and facts.all_reduce is not None:
            return _by_hand(facts, facts.all_reduce)
        if facts.step == 1:
            return OK
        synchronised = [index for index, m in facts.applied if synced(record, m)]
        if len(synchronised) < 2 or synchronised[-1] != len(record.micro_batches) - 1:
            return OK
        if not _all_reduce_alike(facts):
            return OK
        claimed = {index for index, m in facts.applied if m.claimed}
        wasted = len(set(synchronised[:-1]) - claimed)  # another optimizer has the rest
        if not wasted:
            return ok("another optimizer has stepped on what was synchronised before the last")
        in_part = _runs_fewer(record, synchronised)
        moved = None if record.sync_bytes is None or in_part else record.sync_bytes * wasted
        sharded = record.wrapper != "ddp"
        separate = facts.separate_losses or facts.may_be_separate_losses
        accumulates = not separate and facts.micro_batches_of(facts.objective) > 1
        return finding(
            "info" if sharded or not accumulates else "warning",
            f"Gradients are synchronised {len(synchronised)} times per step",
            f"{counted(wasted, 'gradient synchronisation')} per step can be avoided"
            f"{_volume(facts, moved)}. {IN_PART if in_part else ''}{_effect(facts)}"
            + (" Under FSDP it saves memory, so it may be intended." if sharded else ""),
            FIX_FSDP2 if record.wrapper == "fsdp2" else FIX,
            synchronisations=len(synchronised),
            wasted=wasted,
            wasted_bytes=moved,
            backward_ms=[record.micro_batches[i].backward_ms or 0.0 for i in synchronised[:64]],
            micro_batches=facts.micro_batches,
        )


def _added_again(facts: StepFacts, all_reduce: ManualAllReduce) -> Outcome:
    """The loop all-reduces ``.grad`` after each backward, with what earlier sums left there."""
    each, times = significant(all_reduce.again), all_reduce.times
    return finding(
        "error",
        f"Gradients are combined {times + 1} times per step, earlier sums included",
        f"An all-reduce between backwards combined the gradients of all ranks "
        f"{counted(times, 'time')} before the one that the step uses. Each later one multiplies "
        f"what was combined before by {each}, so the gradient of the first micro-batch counts "
        f"{significant(all_reduce.again**times)} times as much as that of the last.",
        FIX_BY_HAND,
        synchronisations=times + 1,
        relative_weight=round(all_reduce.again**times, 6),
        micro_batches=facts.micro_batches,
    )


def _by_hand(facts: StepFacts, all_reduce: ManualAllReduce) -> Outcome:
    """The loop combines the gradients itself; more often than once costs time alone."""
    if not all_reduce.is_combined:
        return not_measured(all_reduce.reason)
    repeats = all_reduce.repeats
    if not repeats:
        return OK
    return finding(
        "info",
        f"Gradients are combined {repeats + 1} times per step",
        f"The loop combined the gradients of all ranks {counted(repeats, 'time')} before the last "
        f"of {counted(facts.micro_batches, 'micro-batch')}. Once per step, after the last, "
        "gives the same gradient up to rounding, and costs less time.",
        FIX_BY_HAND,
        synchronisations=repeats + 1,
        wasted=repeats,
        micro_batches=facts.micro_batches,
    )


def _runs_fewer(record: StepRecord, synchronised: list[int]) -> bool:
    """Whether a backward before the last ran fewer collectives: one of several wrapped models."""
    *before, last = (record.micro_batches[index].collectives or 0 for index in synchronised)
    return record.wrapper == "ddp" and any(count < last for count in before)


def _volume(facts: StepFacts, moved: int | None) -> str:
    of_one = " of this optimizer's gradients" if len(facts.run.optimizers) > 1 else ""
    return f", {data_size(moved)}{of_one} per rank" if moved else ""


def _effect(facts: StepFacts) -> str:
    if facts.averaged:
        return "The extra synchronisation costs time; the gradient is the same up to rounding."
    return "The effect on the gradient depends on the comm hook, which was not observed to average."


def _all_reduce_alike(facts: StepFacts) -> bool:
    """Whether every backward synchronised gradients.

    FSDP1 gathers parameters in every backward, which are collectives, too. Only if all backwards
    ran equally many collectives did each of them also reduce gradients.
    """
    if facts.record.wrapper == "ddp" or all(m.wrapper is not None for _, m in facts.applied):
        return True
    return len({m.collectives for _, m in facts.applied}) == 1
