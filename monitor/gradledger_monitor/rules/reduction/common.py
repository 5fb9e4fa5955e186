"""What the rules on the balance have in common: when they stay calm, and what they read."""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.balance_diagnosis import Pattern
from gradledger_monitor.rules.rule import OK, Precondition, Window, not_applicable, not_measured

_CALM: frozenset[Pattern] = frozenset({"fair", "coefficient"})


def no_mistake(window: Window) -> Outcome | None:
    """The outcome where the window's balance shows no mistake or is not measured."""
    seen = window.balance
    if seen.pattern in ("unmeasured", "pending"):
        return not_measured(seen.reason)
    if seen.pattern == "by_design":
        return not_applicable(seen.reason)
    return OK if seen.pattern in _CALM else None


BALANCE_OFF = Precondition("the balance is off", no_mistake)


def shows(window: Window, *patterns: Pattern) -> bool:
    """Whether the window's balance shows one of these."""
    return window.balance.pattern in patterns


def balance(window: Window) -> float:
    """B of the reading in which the pattern was found."""
    assert window.balance.reading is not None
    return window.balance.reading.ledger.balance


def declared(window: Window) -> float:
    """What the balance should be: 1, unless the run says otherwise."""
    return window.facts.run.declared_scale or 1.0


def factor(window: Window) -> float:
    """How many times too large the gradient is: B over what it should be."""
    return balance(window) / declared(window)


def of_declared(window: Window) -> str:
    """Words after a share of what B should be, where that is not 1."""
    meant = declared(window)
    return "" if meant == 1 else f" of the declared {meant:.4g}"


def tokens(window: Window) -> float:
    """N of that reading."""
    assert window.balance.reading is not None
    return window.balance.reading.ledger.tokens
