"""reduction.balance_off"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules import effects
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    declared,
    factor,
    shows,
)
from gradledger_monitor.rules.rule import OK, Rule, Window, finding

FIX = """\
# if the factor is meant, declare it, and it is no longer reported:
gradledger.watch(model, optimizer, scale=B)"""


class BalanceOff(Rule):
    """The balance is constant, but not 1, and nothing known explains it.

    **What it sees**

    The same balance in window after window, which is neither 1 nor a function of K, the ranks or
    the tokens.

    **Why it matters**

    It may well be meant: a loss weight, a temperature. It changes the gradient's size by a known
    constant factor, and is told so that it is known.

    **What to do**

    Declare it with ``scale=``, or remove the factor.

    **When it is silent**

    A constant in front of the loss explains it; the run declares it.

    **Incidents**

    None: this is information, not an accusation.
    """

    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B constant and unexplained."""
        if not shows(window, "constant"):
            return OK
        b, by = balance(window), factor(window)
        return finding(
            "info",
            f"The balance is {b:.4g}, not {declared(window):.4g}",
            f"Every window so far has a balance of {b:.4g}. {effects.of_factor(by, window.facts)}.",
            FIX,
            balance=round(b, 6),
            factor=round(by, 6),
        )
