"""What the rules on the balance have in common: when they stay calm, and how they speak."""

from __future__ import annotations

from gradledger_monitor.findings import Outcome
from gradledger_monitor.rules.balances import Pattern
from gradledger_monitor.rules.base import Window, not_applicable, not_measured, ok


def unless(window: Window, *patterns: Pattern) -> Outcome | None:
    """The calm answer, or None when the window's balance shows one of ``patterns``."""
    seen = window.balance
    if seen.pattern in patterns:
        return None
    if seen.pattern in ("unmeasured", "pending"):
        return not_measured(seen.reason)
    if seen.pattern == "by_design":
        return not_applicable(seen.reason)
    return ok()


def balance(window: Window) -> float:
    """B of the reading in which the pattern was found."""
    assert window.balance.reading is not None
    return window.balance.reading.ledger.balance


def tokens(window: Window) -> float:
    """N of that reading."""
    assert window.balance.reading is not None
    return window.balance.reading.ledger.tokens
