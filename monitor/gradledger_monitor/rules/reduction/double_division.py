"""reduction.double_division"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules import effects
from gradledger_monitor.rules.reduction.common import BALANCE_OFF, balance, of_declared, shows
from gradledger_monitor.rules.rule import OK, Rule, Window, finding

FIX = """\
# the trainer (or the loss) already normalises over the window: do not divide again
loss = F.cross_entropy(logits, labels, reduction="sum") / tokens_in_window
loss.backward()                      # not (loss / K).backward()"""


class DoubleDivision(Rule):
    """The loss is divided by K twice.

    **What it sees**

    The balance of the window is 1/K where it should be 1.

    **Why it matters**

    The gradient is K times too small. With SGD the learning rate is a K-th of the configured one;
    Adam hides most of it, but weight decay and epsilon then weigh K times as much against the
    gradient, and clipping never engages.

    **What to do**

    Find the two divisions: typically the loss function already divides by the tokens of the
    whole window, and the trainer divides by ``gradient_accumulation_steps`` once more.

    **When it is silent**

    K = 1; the run declares ``scale``; a constant in front of the loss explains the factor.

    **Incidents**

    modelscope/ms-swift#10117, modelscope/ms-swift#10116, huggingface/accelerate#3533
    """

    inhibits = ("reduction.token_weights_unequal",)

    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B = 1/K."""
        if not shows(window, "double"):
            return OK
        k = window.facts.micro_batches
        return finding(
            "warning",
            f"The loss is divided by K = {k} twice",
            f"The balance is {balance(window):.4g} = 1/{k}{of_declared(window)}: the gradient is "
            f"{k} times too small. "
            f"{effects.of_factor(1 / k, window.facts)}.",
            FIX,
            balance=round(balance(window), 6),
            micro_batches=k,
            factor=1 / k,
        )
