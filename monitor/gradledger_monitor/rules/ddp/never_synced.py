"""ddp.never_synced"""

from __future__ import annotations

from collections.abc import Iterator

from gradledger_monitor.ingest.schema import MicroBatch, StepRecord
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import SEVERAL_RANKS, synced
from gradledger_monitor.rules.rule import OK, Rule, Window, counted, finding, not_applicable

FIX = """\
loss = compute_loss(model(x), y)        # model is the DDP wrapper, not model.module
loss.backward()"""


class NeverSynced(Rule):
    """The ranks never synchronise their gradients.

    **What it sees**

    A DDP model, several ranks, and no gradient collective in a whole window that was stepped.

    **Why it matters**

    Each rank trains its own model on its share of the data. Only one of them is saved: the run
    used the data, and the time, of one rank.

    **What to do**

    Call the wrapper, not ``model.module``, and leave the last micro-batch outside ``no_sync()``.

    **When it is silent**

    Gradients are synchronised by hand between backward and step; no wrapper is in use, and the
    ranks look independent.

    **Incidents**

    jingyaogong/minimind#853, pytorch/pytorch#104336, huggingface/picotron#5
    """

    inhibits = ("ddp.replica_drift", "norm.*", "reduction.*", "ddp.uneven_microbatches")

    precondition = SEVERAL_RANKS

    def evaluate(self, window: Window) -> Outcome:
        """No gradient collective in any rank's window."""
        facts = window.facts
        record = facts.record
        if record.wrapper is None:
            return not_applicable("no data-parallel wrapper holds the optimizer's parameters")
        if record.skipped or not facts.applied or _perhaps_by_hand(facts):
            return OK
        if record.wrapper != "ddp" or any(synced(r, m) for r, m in _all(facts)):
            return OK
        bypassed = all(m.wrapper == "bypassed" for _, m in facts.applied)
        how = (
            "forward runs through model.module"
            if bypassed
            else "every micro-batch is under no_sync"
        )
        return finding(
            "error",
            "Gradients are never synchronised between the ranks",
            f"{facts.run.world_size} ranks step on their own gradients: {how}, and no all-reduce "
            f"runs in the window's {counted(facts.micro_batches, 'micro-batch')}.",
            FIX,
            ranks=facts.run.world_size,
            micro_batches=facts.micro_batches,
            bypassed=bypassed,
            norms={str(r): number(x.norm) for r, x in list(facts.records.items())[:16]},
        )


def _perhaps_by_hand(facts: StepFacts) -> bool:
    """Collectives after backward may combine the gradients, unless each rank keeps its own."""
    norms = [number(r.norm) or 0.0 for r in facts.records.values()]
    apart = max(norms) - min(norms) > facts.tolerance * max(norms)
    return bool(facts.record.collectives_after) and (facts.record.sync != "none" or not apart)


def _all(facts: StepFacts) -> Iterator[tuple[StepRecord, MicroBatch]]:
    for record in facts.records.values():
        for micro_batch in record.micro_batches:
            yield record, micro_batch
