"""ddp.missing_no_sync"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import SEVERAL_RANKS, synced
from gradledger_monitor.rules.rule import OK, Rule, Window, finding

FIX = """\
last = (i + 1) % K == 0
with contextlib.nullcontext() if last else model.no_sync():
    loss = compute_loss(model(x), y) / K      # forward inside it, too
    loss.backward()"""


class MissingNoSync(Rule):
    """Gradients are all-reduced on every micro-batch, not only on the last.

    **What it sees**

    Gradient collectives in the backward of micro-batches before the last one of a window.

    **Why it matters**

    It is a cost, not a corruption: with plain DDP the gradient is the same. The ranks move all
    gradients K times per step where once is enough, and wait for each other each time.

    **What to do**

    Run forward and backward of all but the last micro-batch under ``model.no_sync()``. Around
    backward alone it does nothing: DDP decides in forward.

    **When it is silent**

    K = 1; the first window, in which DDP rebuilds its buckets; one rank. Under FSDP, syncing
    each time saves memory on purpose, so it is information only.

    **Incidents**

    huggingface/accelerate#106, facebookresearch/ClassyVision#706, KellerJordan/modded-nanogpt#31,
    kohya-ss/sd-scripts#1064
    """

    precondition = SEVERAL_RANKS

    def evaluate(self, window: Window) -> Outcome:
        """Synchronised micro-batches before the last, which is synchronised too."""
        facts = window.facts
        record = facts.record
        if facts.micro_batches < 2 or facts.step == 1:
            return OK
        places = [index for index, m in facts.applied if synced(record, m)]
        if len(places) < 2 or places[-1] != len(record.micro_batches) - 1 or not _each_alike(facts):
            return OK
        wasted = len(places) - 1
        moved = (record.sync_bytes or 0) * wasted
        spent = [record.micro_batches[p].backward_ms or 0.0 for p in places]
        sharded = record.wrapper != "ddp"
        return finding(
            "info" if sharded else "warning",
            f"Gradients are synchronised {len(places)} times per step",
            f"{wasted} of {len(places)} synchronisations per step are not needed: "
            f"{moved / 1e6:,.1f} MB of gradients for each rank and step. {_cost(facts)}"
            + (" Under FSDP it saves memory, and may be meant." if sharded else ""),
            FIX,
            synchronisations=len(places),
            wasted=wasted,
            wasted_bytes=moved,
            backward_ms=spent[:64],
            micro_batches=facts.micro_batches,
        )


def _cost(facts: StepFacts) -> str:
    if facts.averaged:
        return "The gradient is the same up to rounding; this costs time, not correctness."
    return "What it does to the gradient depends on the comm hook, which was not seen to average."


def _each_alike(facts: StepFacts) -> bool:
    """FSDP1 gathers in every backward; only where all run equally many did each one reduce."""
    if facts.record.wrapper == "ddp" or all(m.wrapper is not None for _, m in facts.applied):
        return True
    return len({m.collectives for _, m in facts.applied}) == 1
