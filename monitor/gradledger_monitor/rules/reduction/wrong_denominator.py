"""reduction.wrong_denominator"""

from __future__ import annotations

import math

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules import effects
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    factor,
    shows,
    tokens,
)
from gradledger_monitor.rules.rule import OK, Rule, Window, as_count, finding

FIX = """\
# divide by the tokens that count in this window, and by nothing else
tokens = sum((labels != -100).sum() for _, labels in window)
loss = F.cross_entropy(logits, labels, reduction="sum") / tokens"""


class WrongDenominator(Rule):
    """The loss is divided by something other than the number of tokens that count.

    **What it sees**

    All tokens weigh alike, but the balance wanders around 1 from window to window; or each
    micro-batch is divided by its padded size.

    **Why it matters**

    The divisor is another quantity: padding, the number of samples, the count of another window.
    The size of the gradient changes with it, and with SGD the effective learning rate; padding also
    lowers the loss that is printed.

    **What to do**

    Count the labels that are not ignored, over all micro-batches of this window and all ranks.

    **When it is silent**

    The balance is 1, constant, or explained by K, the world size or a plain sum (other rules).

    **Incidents**

    OpenNMT/OpenNMT-py#526, hiyouga/LlamaFactory#6639, NVIDIA/Megatron-LM#2417
    """

    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B wanders with even weights, or w = 1 / (K * padded size)."""
        if not shows(window, "wandering", "padding"):
            return OK
        b, n = balance(window), tokens(window)
        by = factor(window)
        divisor = n / by if by else math.inf  # a declared scale may be as large as a float
        padding = window.balance.pattern == "padding"
        cause = (
            "each micro-batch is divided by its padded size"
            if padding
            else f"the loss is divided by {divisor:,.6g} where {n:,.0f} tokens count"
        )
        return finding(
            "warning",
            "The loss is divided by padding" if padding else "The divisor is not the token count",
            f"The balance is {b:.4g} and changes from window to window: {cause}. "
            f"{effects.of_changing_factor(window.facts)}.",
            FIX,
            balance=round(b, 6),
            tokens=as_count(n),
            divisor=round(divisor, 4),
            padding=padding,
            earlier_balances=[round(c.balance, 6) for c in window.past if c.balance][-8:],
        )
