"""reduction.partial_window"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules import effects
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    declared,
    of_declared,
    shows,
)
from gradledger_monitor.rules.rule import OK, Rule, Window, counted, finding

FIX = """\
# divide by the micro-batches that are really in this window
in_window = min(K, batches_in_epoch - first_batch_of_window)
(loss / in_window).backward()"""


class PartialWindow(Rule):
    """A shorter or longer window is still divided by the usual K.

    **What it sees**

    Full windows have balance 1; a window of k micro-batches has balance k/K.

    **Why it matters**

    At the end of an epoch the number of micro-batches is rarely a multiple of K. The last step is
    taken with a gradient k/K times its size: a small silent step, once per epoch.

    **What to do**

    Divide by the number of micro-batches that are really in the window, or by its tokens.

    **When it is silent**

    The short window's balance is 1, or no full window with balance 1 came before it.

    **Incidents**

    huggingface/transformers#38837, modelscope/ms-swift#10084,
    Lightning-AI/pytorch-lightning#19987
    """

    inhibits = ("batch.changed_without_lr",)

    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B = k/K in a window of k, after fair windows of K."""
        if not shows(window, "partial"):
            return OK
        k, ratio = window.facts.micro_batches, window.balance.ratio
        full = round(k / ratio)
        return finding(
            "warning",
            f"A window of {counted(k, 'micro-batch')} is divided by {full}",
            f"Windows of {full} micro-batches have balance {declared(window):.4g}; this one has "
            f"{k} and a balance of {balance(window):.4g} = {k}/{full}{of_declared(window)}. "
            f"{effects.of_passing_factor(ratio, window.facts)}.",
            FIX,
            balance=round(balance(window), 6),
            micro_batches=k,
            usual_micro_batches=full,
            factor=round(ratio, 6),
        )
