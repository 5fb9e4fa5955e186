"""loop.zeroed_before_step"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured

FIX = """\
loss.backward()
optimizer.step()
optimizer.zero_grad()"""


class ZeroedBeforeStep(Rule):
    """Gradients are zeroed just before the optimizer steps.

    **What it sees**

    The backwards of the window left gradients, but at the step there are none.

    **Why it matters**

    The step applies no gradient: parameters change at most by weight decay and momentum.

    **What to do**

    Call ``optimizer.zero_grad()`` after ``optimizer.step()``.

    **When it is silent**

    The step is skipped; the backwards left only zeros.

    **Incidents**

    pytorch/pytorch#47175 (feature request for a warning)
    """

    points_at = ("zero_grad", "step")
    single_calls = ("zero_grad",)
    inhibits = ("reduction.*", "norm.*", "scaler.all_grads_zero", "loop.grads_not_zeroed")

    def evaluate(self, window: Window) -> Outcome:
        """Gradients after backward, none at the step: a post-backward factor of 0."""
        record = window.facts.record
        if record.skipped or not record.micro_batches:
            return OK
        if record.post_factor is None and record.empty:
            return not_measured(record.missing.get("post_factor", "no gradient sample"))
        if not record.empty or record.post_factor != 0 or number(record.norm):
            return OK
        return finding(
            "error",
            "The optimizer steps without gradients",
            f"{counted(len(record.micro_batches), 'backward')} left gradients, which were absent "
            "or zero when the optimizer stepped.",
            FIX,
            micro_batches=len(record.micro_batches),
        )
