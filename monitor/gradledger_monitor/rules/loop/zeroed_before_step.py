"""loop.zeroed_before_step"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured

FIX = """\
loss.backward()
optimizer.step()
optimizer.zero_grad()"""


class ZeroedBeforeStep(Rule):
    """Gradients are zeroed just before the optimizer steps.

    **What it sees**

    The window's backwards left gradients, and at the step there are none.

    **Why it matters**

    The optimizer steps on nothing: the model changes by weight decay and momentum only.

    **What to do**

    ``zero_grad()`` belongs after ``step()``.

    **When it is silent**

    The step is skipped; the backwards themselves left only zeros.

    **Incidents**

    pytorch/pytorch#47175 (asks for a warning)
    """

    inhibits = ("reduction.*", "norm.*", "scaler.all_grads_zero", "loop.grads_not_zeroed")

    def evaluate(self, window: Window) -> Outcome:
        """A post-backward factor of 0."""
        record = window.facts.record
        if record.skipped or not record.micro_batches:
            return OK
        if record.post_factor is None and record.empty:
            return not_measured(record.missing.get("post_factor", "no gradient sample"))
        if not record.empty or record.post_factor != 0 or number(record.norm):
            return OK
        return finding(
            "error",
            "The optimizer steps on no gradients",
            f"{len(record.micro_batches)} backwards made gradients, and they were gone when the "
            "optimizer stepped.",
            FIX,
            micro_batches=len(record.micro_batches),
        )
