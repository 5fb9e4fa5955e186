"""loop.step_every_microbatch"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    factor,
    of_declared,
    shows,
)
from gradledger_monitor.rules.rule import OK, Rule, Window, finding

FIX = """\
(loss / K).backward()
if (i + 1) % K == 0:                 # step once per window, not once per micro-batch
    optimizer.step()
    optimizer.zero_grad()"""


class StepEveryMicrobatch(Rule):
    """The loss is divided for accumulation, but the optimizer steps after every micro-batch.

    **What it sees**

    Every window holds one micro-batch, and its balance is 1/m for the same whole m.

    **Why it matters**

    Accumulation does nothing: m small steps on noisy gradients are taken where one step on m
    micro-batches was meant. With Adam each of the m steps is full-sized; the loss curve may even
    look better for a while.

    **What to do**

    Step, clip, schedule and zero once per m micro-batches.

    **When it is silent**

    K = 1 with balance 1; a constant factor in front of the loss explains 1/m.

    **Incidents**

    lucidrains/reformer-pytorch#97, coqui-ai/Trainer#120, huggingface/accelerate#2790
    """

    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """K = 1 and B = 1/m, twice."""
        if not shows(window, "early_step"):
            return OK
        m = round(1 / factor(window))
        return finding(
            "warning",
            f"The optimizer steps after every micro-batch, {m} times too often",
            f"Every window has one micro-batch and a balance of 1/{m}{of_declared(window)}: "
            f"the loss is divided for an accumulation over {m} micro-batches that does not happen.",
            FIX,
            balance=round(balance(window), 6),
            micro_batches=1,
            intended_micro_batches=m,
        )
