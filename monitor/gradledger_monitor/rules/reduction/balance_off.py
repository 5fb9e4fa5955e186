"""reduction.balance_off"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.balance.patterns import wrong_balances
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    declared,
    factor,
    factor_effect,
    shows,
    varies,
)
from gradledger_monitor.rules.rule import OK, Rule, Window, finding

FIX = """\
# if the factor B is intended, declare it; it is then no longer reported:
gradledger.watch(model, optimizer, scale=B)"""


class BalanceOff(Rule):
    """The balance is not 1, and no recognised mistake explains it.

    **What it sees**

    A balance that differs from 1 (or from the declared ``scale``) in at least two windows, and
    that matches no function of K, the ranks or the tokens. It is constant; or it varies in a
    loss that is a mean over its own elements, or whose token weights are unequal.

    **Why it matters**

    The factor may be intended: a loss weight, a temperature. It scales the gradient, so it
    changes the effective learning rate of SGD and the meaning of a clipping threshold.

    **What to do**

    If the factor is intended, declare it with ``scale=``. If not, remove it.

    **When it is silent**

    The balance is 1 or the declared scale; a constant multiplier of the loss explains it;
    another rule of the family names the cause; the loss is divided by a number that is no count
    of its elements, and the balance varies: then it is not measured.

    **Incidents**

    None: this finding is information.
    """

    points_at = ("loss", "backward")
    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B is off, and no recognised mistake explains it."""
        if not shows(window, "constant"):
            return OK
        b = balance(window)
        return finding(
            "info",
            f"The balance is {significant(b)}, not {significant(declared(window))}",
            f"{_history(window)}. {_cause(window)}. If it is not: {factor_effect(window)}.",
            FIX,
            balance=round(b, 6),
            factor=round(factor(window), 6),
        )


def _cause(window: Window) -> str:
    shown = window.balance.evidence or "The balance alone does not show the cause"
    return f"{shown}; it may be an intended weight"


def _history(window: Window) -> str:
    if varies(window):
        return (
            f"The balance is {significant(balance(window))} in this window and differs between "
            "windows"
        )
    b, earlier = balance(window), wrong_balances(window.of_same_loss)
    least, most = significant(min([b, *earlier])), significant(max([b, *earlier]))
    if least == most:
        return f"The balance is {significant(b)}, as in earlier windows"
    return f"The balance is {significant(b)}, and from {least} to {most} in windows so far"
