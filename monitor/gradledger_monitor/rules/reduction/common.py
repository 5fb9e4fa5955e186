"""Shared by the rules on the balance: when they do not apply, and the numbers that they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradledger_monitor.model.findings import Failure, Outcome, Severity
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.token_ledger import total
from gradledger_monitor.rules.balance.further import windows_of_the_same_weight
from gradledger_monitor.rules.balance.patterns import (
    NOT_MEASURED,
    Closed,
    Diagnosis,
    Pattern,
    differs_from_earlier,
    wrong_windows,
)
from gradledger_monitor.rules.gradient_scale_effects import (
    changing_factor_effect,
    constant_factor_effect,
)
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Precondition, Window, not_applicable, not_measured, ok

_NO_MISTAKE: frozenset[Pattern] = frozenset({"fair", "coefficient", "clipped"})


# The share of the gradient's weight from which a mistake in it is a warning, not information.
LEAST_SHARE = 0.01
CHANGED_LATER = (
    "judged by the losses; changes of the gradients by hooks or by the loop are not judged"
)
HOOKS = "judged by the losses; what hooks of parameters do to their gradients is not judged"


def no_mistake(window: Window) -> Outcome | None:
    """The outcome if the balance shows no mistake or is not measured; None if it shows one."""
    diagnosis = window.balance
    if diagnosis.pattern in ("other_divisor", "all_positions"):  # what was fair was so by chance
        return Failure("not_measured", diagnosis.reason)
    if diagnosis.pattern in NOT_MEASURED:
        return not_measured(diagnosis.reason)
    if diagnosis.pattern == "by_design":
        return not_applicable(diagnosis.reason)
    patterns = {d.pattern for d in window.diagnoses}
    if not patterns <= {*_NO_MISTAKE, "all_positions"}:
        return None
    further = diagnosed(window, "all_positions")
    if further is not None:
        return Failure("not_measured", further.reason)
    if window.facts.factor_unmeasured:
        return ok(CHANGED_LATER)
    hooked = any("hooks" in record.missing for record in window.facts.records.values())
    return ok(HOOKS) if hooked else OK


# Patterns that state the same of the windows before that were off, and showed no pattern alone.
# "padding" is not among them: it is read from single windows.
_SAME_BEFORE: tuple[Pattern, ...] = (
    *("missing", "double", "partial", "world", "sum", "stale"),
    *("early_step", "early_steps", "unprepared", "other_count", "wandering", "constant"),
)


def steps_of_pattern(window: Window) -> tuple[int, ...]:
    """The steps that the pattern of a window is about: also earlier ones that only it explains."""
    step, pattern = window.facts.step, window.balance.pattern
    if pattern == "partial_before":  # this window is balanced, and those before it are not
        return tuple(closed.step for closed in wrong_windows(window.of_same_loss))
    if pattern not in _SAME_BEFORE:
        return (*_of_further(window), step)
    alone = 1 if pattern in ("early_step", "early_steps", "unprepared") else None
    earlier = [
        closed.step
        for closed in _unexplained(window.of_same_loss, pattern)
        if alone in (None, closed.micro_batches)
        and not (pattern == "partial" and closed.micro_batches == _usual(window))
    ]
    return (*reversed(earlier), step)


def _unexplained(past: Sequence[Closed], pattern: Pattern) -> Iterator[Closed]:
    """The last windows that were off and waited for another one, the latest first.

    A balance that differs between windows shows that one which seemed constant was not.
    """
    waiting = ("pending", "constant") if pattern == "wandering" else ("pending",)
    for closed in reversed(past):
        if closed.pattern in waiting:
            yield closed
        elif closed.pattern != "unmeasured":
            return


def _usual(window: Window) -> int:
    """The number of micro-batches that a window of another length is divided by."""
    return round(micro_batches(window) / window.balance.ratio)


def _of_further(window: Window) -> list[int]:
    """The windows before in which a further objective had the same weight: so it has in all."""
    missing = diagnosed(window, "term_missing")
    if missing is None or missing.objective is None or not missing.evidence:
        return []
    same = windows_of_the_same_weight(window.facts, missing.objective, window.of_same_loss)
    return [closed.step for closed in same if closed.micro_batches > 1]


BALANCE_OFF = Precondition("the balance is off", no_mistake, steps_of_pattern)


def diagnosed(window: Window, pattern: Pattern) -> Diagnosis | None:
    """The first diagnosis of an objective of the window that has this pattern."""
    return next((d for d in window.diagnoses if d.pattern == pattern), None)


def shows(window: Window, *patterns: Pattern) -> bool:
    """Whether the balance of the heaviest objective has one of these patterns."""
    return window.balance.pattern in patterns


def share(objective: Objective, objectives: Sequence[Objective]) -> float:
    """The objective's share of the gradient weight of all losses; 1 for the heaviest one.

    A penalty on the parameters has no tokens, and its weight is compared with none.
    """
    if objective is objectives[0] or objective.is_penalty:
        return 1.0
    whole = total(o.ledger.balance for o in objectives if not o.is_penalty)
    return objective.ledger.balance / whole


def severity_of_one(objective: Objective, objectives: Sequence[Objective]) -> Severity:
    """Of a mistake in one of several losses: information if it has little of the gradient."""
    return "warning" if share(objective, objectives) >= LEAST_SHARE else "info"


def share_sentence(objective: Objective, objectives: Sequence[Objective]) -> str:
    """States the share of a loss whose mistake is information for that reason."""
    if severity_of_one(objective, objectives) == "warning":
        return ""
    return f" It has {significant(100 * share(objective, objectives))}% of the gradient's weight."


def balance(window: Window) -> float:
    """B of the objective with the most gradient weight."""
    assert window.balance.objective is not None
    return window.balance.objective.ledger.balance


def declared(window: Window) -> float:
    """The intended balance: 1, or the ``scale`` that the run declares."""
    return window.facts.run.declared_scale or 1.0


def factor(window: Window) -> float:
    """By how much the gradient is too large: B over the intended balance."""
    return balance(window) / declared(window)


def intended(window: Window) -> float:
    """The balance that the loop should have: the declared one, times a constant of the loss."""
    return declared(window) * window.balance.constant


def known_from(window: Window) -> str:
    """The sentence that states what shows the constant of the loss, before another sentence."""
    evidence = window.balance.evidence
    return f"{evidence}. " if evidence else ""


def of_constant(window: Window) -> str:
    """Text after a share of the constant that the loss is multiplied by: ``1/4 of 0.5``."""
    constant = window.balance.constant
    return "" if constant == 1 else f" of {significant(constant)}"


def of_declared(window: Window) -> str:
    """Text after a share of the intended balance, if that is not 1: ``1/4 of the declared 8``."""
    intended = declared(window)
    return "" if intended == 1 else f" of the declared {significant(intended)}"


def tokens(window: Window) -> float:
    """N of the objective with the most gradient weight."""
    assert window.balance.objective is not None
    return window.balance.objective.ledger.tokens


def micro_batches(window: Window) -> int:
    """K of the objective that the diagnosis of the window is about."""
    return window.facts.micro_batches_of(window.balance.objective)


def varies(window: Window) -> bool:
    """Whether the balance differs from that of an earlier window with a wrong balance."""
    return differs_from_earlier(balance(window), window.of_same_loss, window.facts.tolerance)


def factor_effect(window: Window) -> str:
    """The effect of the wrong balance on training: of a changing factor, or of a constant one."""
    if varies(window):
        return changing_factor_effect(window.facts)
    return constant_factor_effect(factor(window) / window.balance.constant, window.facts)
