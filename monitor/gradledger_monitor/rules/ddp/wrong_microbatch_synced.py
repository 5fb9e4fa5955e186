"""ddp.wrong_microbatch_synced"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.ddp.common import SEVERAL_RANKS, synced
from gradledger_monitor.rules.rule import OK, Rule, Window, counted, finding

FIX = """\
model.require_backward_grad_sync = (k == K - 1)   # before the forward
loss = compute_loss(model(x), y) / K
loss.backward()"""


class WrongMicrobatchSynced(Rule):
    """Gradients are synchronised on an early micro-batch and not on the last.

    **What it sees**

    A gradient collective in an earlier backward of the window, and none in the last one.

    **Why it matters**

    What is accumulated after the sync stays on each rank: the replicas step on different gradients
    and drift apart. The number of all-reduces is right, so nothing looks wrong.

    **What to do**

    DDP reads ``require_backward_grad_sync`` in forward, not in backward: set the flag, or enter
    ``no_sync()``, before the forward of the micro-batch.

    **When it is silent**

    The last micro-batch synchronises; the loop synchronises gradients by hand before the step.

    **Incidents**

    karpathy/build-nanogpt#30, modelscope/FunASR#3472
    """

    inhibits = ("ddp.replica_drift", "reduction.*", "norm.*")

    precondition = SEVERAL_RANKS

    def evaluate(self, window: Window) -> Outcome:
        """Synchronised early, not at the end."""
        facts = window.facts
        record = facts.record
        places = [index for index, m in facts.applied if synced(record, m)]
        last = len(record.micro_batches) - 1
        if facts.micro_batches < 2 or record.skipped or record.collectives_after:
            return OK
        if not places or places[-1] == last or record.wrapper != "ddp":
            return OK
        return finding(
            "error",
            f"Micro-batch {places[-1] + 1} is synchronised, the last one is not",
            f"The all-reduce runs in the backward of micro-batch {places[-1] + 1} of {last + 1}. "
            f"What comes after it, {counted(last - places[-1], 'micro-batch')}, stays on its rank: "
            "the replicas step on different gradients.",
            FIX,
            synchronised=[p + 1 for p in places],
            micro_batches=last + 1,
        )
