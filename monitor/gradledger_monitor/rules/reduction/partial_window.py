"""reduction.partial_window"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.gradient_scale_effects import intermittent_factor_effect
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    of_declared,
    shows,
)
from gradledger_monitor.rules.reduction.fixes import WINDOW_LENGTH, factor_fix
from gradledger_monitor.rules.rule import OK, Rule, Window, counted, finding

FIX = WINDOW_LENGTH["plain"]


class PartialWindow(Rule):
    """A shorter or longer window is divided by the usual K.

    **What it sees**

    A window of k micro-batches has a balance of k/K, where K is the number of micro-batches in
    the last window with a correct balance.

    **Why it matters**

    The number of micro-batches per epoch is rarely a multiple of K. The last step of the epoch
    then applies a gradient that is k/K of the right size.

    **What to do**

    Divide by the number of micro-batches in the window, or by its tokens.

    **When it is silent**

    The balance of the short window is correct; no window with a correct balance came before it.

    **Incidents**

    huggingface/transformers#38837, modelscope/ms-swift#10084,
    Lightning-AI/pytorch-lightning#19987
    """

    inhibits = ("batch.changed_without_lr",)

    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B = k/K in a window of k, after a fair window of K."""
        if not shows(window, "partial"):
            return OK
        k, ratio = window.facts.micro_batches, window.balance.ratio
        full = round(k / ratio)
        return finding(
            "warning",
            f"A window of {counted(k, 'micro-batch')} is divided by {full}",
            f"The last balanced window held {counted(full, 'micro-batch')}. This one holds {k}, "
            f"and its balance is {significant(balance(window))} = {k}/{full}{of_declared(window)}. "
            f"{intermittent_factor_effect(ratio, window.facts)}.",
            factor_fix(WINDOW_LENGTH, window.facts, window.balance.objective),
            balance=round(balance(window), 6),
            micro_batches=k,
            usual_micro_batches=full,
            factor=round(ratio, 6),
        )
