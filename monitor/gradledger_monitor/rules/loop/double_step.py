"""loop.double_step"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.rule import OK, Rule, Window, finding

FIX = """\
scaler.step(optimizer)       # this steps the optimizer:
scaler.update()              # no optimizer.step() beside it"""


class DoubleStep(Rule):
    """The optimizer steps twice on one gradient.

    **What it sees**

    A step with no backward since the last one, on the same gradients.

    **Why it matters**

    The update is made twice: about twice the learning rate, and Adam's moments count the gradient
    twice. The loss may even fall faster for a while.

    **What to do**

    Step once per window: look for a helper that steps as well (a trainer, ``scaler.step``).

    **When it is silent**

    A backward lies between the steps; LBFGS, which runs its own.

    **Incidents**

    pytorch/vision#4874, NVIDIA/physicsnemo#1911
    """

    def evaluate(self, window: Window) -> Outcome:
        """A repeated gradient."""
        record = window.facts.record
        if record.micro_batches or record.skipped or record.empty:
            return OK
        if not record.repeat:
            return OK
        return finding(
            "error",
            "The optimizer steps twice on one gradient",
            f"Step {window.facts.step} follows step {window.facts.step - 1} without a backward in "
            "between, and applies the same gradients again.",
            FIX,
            norm=number(record.norm),
        )
