"""reduction.unnormalised_sum"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules import effects
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    declared,
    factor,
    shows,
    tokens,
)
from gradledger_monitor.rules.rule import OK, Rule, Window, as_count, finding

FIX = """\
loss = F.cross_entropy(logits, labels, reduction="sum") / tokens_in_window
# or, once per window, before the step:
for p in model.parameters():
    p.grad.div_(tokens_in_window)"""


class UnnormalisedSum(Rule):
    """A summed loss is never divided by the number of tokens.

    **What it sees**

    Every token weighs 1 (or 1 over the ranks), so the balance is the number of tokens N.

    **Why it matters**

    The gradient's size follows the number of tokens: the effective learning rate changes from
    step to step with the lengths of the texts, and with every change of the batch size.

    **What to do**

    Divide by the tokens of the window, in the loss or in the gradients after the last backward.

    **When it is silent**

    The gradients are divided after backward; the loss is a bare sum of a formula of your own,
    whose unit cannot be known; the run declares ``scale``.

    **Incidents**

    allenai/open-instruct#1728, ultralytics/yolov5#464
    """

    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """w = 1 for every token."""
        if not shows(window, "sum"):
            return OK
        n, b, by = tokens(window), balance(window), factor(window)
        known = [c.tokens for c in window.past if c.tokens]
        follows = any(abs(n / t - 1) > 0.02 for t in known)
        cross_entropy = all(s.loss_term.kind.startswith("NllLoss") for s in window.facts.terms)
        constant = effects.of_factor(by, window.facts)
        effect = effects.of_changing_factor(window.facts) if follows else constant
        moves = " It moves with the tokens from step to step." if follows else ""
        return finding(
            "warning" if follows or cross_entropy else "info",
            "The loss is summed over tokens and never divided",
            f"Each of the {n:,.0f} tokens weighs {b / n:.4g}: the balance is {b:,.6g} instead "
            f"of {declared(window):.4g}.{moves} "
            f"{effect}.",
            FIX,
            balance=round(b, 6),
            tokens=as_count(n),
            factor=round(by, 6),
            follows_tokens=follows,
        )
