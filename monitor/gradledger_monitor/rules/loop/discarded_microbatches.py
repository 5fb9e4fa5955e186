"""loop.discarded_microbatches"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.ingest.schema import MicroBatch, StepRecord
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.rule import OK, Rule, Window, counted, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
last = i + 1 == len(loader)
if (i + 1) % K == 0 or last:         # do not lose the tail of the epoch
    optimizer.step()
    optimizer.zero_grad()"""


class DiscardedMicrobatches(Rule):
    """Accumulated gradients are thrown away without a step.

    **What it sees**

    Micro-batches whose gradients were zeroed before any optimizer stepped on them.

    **Why it matters**

    Their tokens were paid for and never used: typically the tail of each epoch, always the same
    share of the data.

    **What to do**

    Step on the last, shorter window, or let it run on into the next epoch; do not zero at the
    start of an epoch.

    **When it is silent**

    The same data are run again (SAM); the loss or the norm was not finite, and a guard dropped it;
    the loop steps after single micro-batches, and drops one; the backward belongs to another
    optimizer.

    **Incidents**

    ultralytics/ultralytics#11217, hpcaitech/ColossalAI#1030, timoschick/pet#36
    """

    state = declare(_single=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._single = False  # some window was stepped after one micro-batch: nothing accumulates

    def evaluate(self, window: Window) -> Outcome:
        """Micro-batches lost to a zeroing inside the window."""
        facts = window.facts
        record = facts.record
        self._single = self._single or len(record.micro_batches) == 1
        if not record.micro_batches:
            return not_measured("no backward was seen in this window")
        if not facts.discarded or self._single or _guarded(record):
            return OK
        lost = [m for m in facts.discarded if _finite(m)]
        if not lost:
            return OK
        tokens = sum(t.tokens or 0 for m in lost for t in m.terms)
        return finding(
            "warning",
            "Accumulated gradients are thrown away",
            f"Accumulated and zeroed before any step used it: {counted(len(lost), 'micro-batch')} "
            f"with {counted(tokens, 'token')}.",
            FIX,
            thrown_away=len(lost),
            tokens_thrown_away=tokens,
            micro_batches=len(record.micro_batches),
        )


def _finite(micro_batch: MicroBatch) -> bool:
    loss = number(micro_batch.loss)
    return loss is None or math.isfinite(loss)


def _guarded(record: StepRecord) -> bool:
    """Whether a clip in the window saw a norm that is not finite: the loop had a reason."""
    norms = [number(e.norm) for e in record.events if e.op == "clip_norm"]
    return any(n is not None and not math.isfinite(n) for n in norms)
