"""loop.zeroed_every_microbatch"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
for i, (x, y) in enumerate(loader):
    (loss_fn(model(x), y) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()        # here, not before each backward"""


DIVIDED = 0.01  # relative rounding of a balance of 1/K


class ZeroedEveryMicrobatch(Rule):
    """Gradients are zeroed between the micro-batches of one window.

    **What it sees**

    Several backwards before each step, and gradients absent or zero at the start of every one
    of them.

    **Why it matters**

    Only the last micro-batch reaches the optimizer. The others cost their time and are thrown
    away; where the loss is divided by K, the step is K times too small as well.

    **What to do**

    Move ``zero_grad()`` out of the inner loop, to the step.

    **When it is silent**

    The same data are run again (SAM, LBFGS); gradients are kept in other buffers and put back
    (Megatron's main_grad); the earlier backward belongs to another optimizer; the loop steps after
    single micro-batches and drops one now and then (a guard).

    **Incidents**

    bytetriper/RAE#67, pytorch/torchtitan#3575, huggingface/accelerate#1299
    """

    inhibits = ("reduction.*", "loop.step_every_microbatch", "loop.discarded_microbatches")

    state = declare(_before=int, _single=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._before = 0  # micro-batches of the last window, if all of them began fresh
        self._single = False  # some window was stepped after one micro-batch

    def after_gap(self) -> None:
        """Of the window before, nothing is known."""
        self._before = 0

    def evaluate(self, window: Window) -> Outcome:
        """Every backward began fresh: in two windows alike, or in one that divides by K."""
        facts = window.facts
        lost = facts.discarded
        record = facts.record
        total = len(record.micro_batches)
        alone = total > 1 and len(lost) == total - 1
        zeroed = alone and all(m.fresh for m in record.micro_batches)
        before, self._before = self._before, total if zeroed else 0
        self._single = self._single or total == 1
        if not record.micro_batches:
            return not_measured("no backward was seen in this window")
        if not zeroed or self._single:
            return OK
        if before != total and not _divides_by(total, window):
            return OK
        tokens = sum(t.tokens or 0 for m in lost for t in m.terms)
        return finding(
            "error",
            "Gradients are zeroed on every micro-batch",
            f"Each of the {total} backwards of a window starts on zeroed gradients: {len(lost)} of "
            f"them, with {tokens:,} tokens, never reach the optimizer.",
            FIX,
            micro_batches=total,
            thrown_away=len(lost),
            tokens_thrown_away=tokens,
        )


def _divides_by(total: int, window: Window) -> bool:
    """Whether the one micro-batch that is left was divided for an accumulation over all."""
    objective = window.balance.objective
    return objective is not None and abs(objective.ledger.balance * total - 1) < DIVIDED
