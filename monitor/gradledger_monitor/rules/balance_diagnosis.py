"""Names what a window's balance B means, once for all rules that read it.

B is 1 in a token-mean run. A mistake in the divisor multiplies it by something that can be
recognised: K, 1/K, k/K, R, 1/R, N. Where several explanations give one number, the evidence that
separates them is asked first, and where none separates them the harmless one is believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective, WeightedTerm
from gradledger_monitor.model.step_facts import StepFacts

Pattern = Literal[
    "fair",
    "unmeasured",
    "by_design",  # a contract other than the token mean, declared or chosen inside the loss
    "coefficient",  # a constant that the loss is multiplied by explains B
    "missing",  # B = K
    "term_missing",  # one loss term's B is K times what its coefficient says
    "double",  # B = 1/K
    "partial",  # B = k/K in a short or long window
    "world",  # B = R or 1/R
    "world_or_weight",  # B = R, and a constant in front of the loss is R too
    "sum",  # every token weighs 1: B = N
    "padding",  # the divisor counts padding
    "early_step",  # K = 1 and B = 1/m
    "wandering",  # equal weights, and B differs from window to window
    "constant",  # B is off, and always the same
    "pending",  # B is off, and one window cannot tell more
]

WANDERS = 10  # times the tolerance by which two balances differ when B is not constant
MOST_MICRO_BATCHES = 4096  # the largest m for which B = 1/m is read as a division by m
OWN_LOSSES = "each backward of the window is a loss of its own, as a critic's real and fake are"
PARTS_OR_TASKS = "several losses make one mean, of parts or of tasks: not seen"
_ROUND = (1, 2, 3, 5)  # first digits of coefficients that people write


@dataclass
class Diagnosis:
    """The pattern, with the ratio that matched (K, m, R, ...) and the reading it was found in."""

    pattern: Pattern
    reason: str = ""
    reading: Objective | None = None
    ratio: float = 1.0
    term: str = ""

    def __init__(
        self,
        pattern: Pattern,
        reason: str = "",
        reading: Objective | None = None,
        ratio: float = 1.0,
        term: str = "",
    ) -> None:
        self.pattern, self.reason, self.reading = pattern, reason, reading
        self.ratio, self.term = ratio, term


class Closed(NamedTuple):
    """What is remembered of an earlier window."""

    micro_batches: int
    balance: float | None
    tokens: float | None
    pattern: Pattern

    @classmethod
    def of(cls, facts: StepFacts, diagnosis: Diagnosis) -> Closed:
        """A window as later ones see it."""
        ledger = facts.ledger
        known = ledger is not None and facts.factor_unmeasured is None
        return cls(
            facts.micro_batches,
            ledger.balance if ledger is not None and known else None,
            ledger.tokens if ledger is not None else None,
            diagnosis.pattern,
        )


def diagnose(facts: StepFacts, past: Sequence[Closed]) -> Diagnosis:
    """The one pattern that explains the window's balance."""
    unclear = facts.unmeasured or facts.factor_unmeasured
    if unclear:
        return Diagnosis("unmeasured", unclear)
    if facts.run.contract in ("sequence", "sample"):
        return Diagnosis("by_design", f"the run declares one weight per {facts.run.contract}")
    if facts.weighted_inside:
        return Diagnosis("by_design", "the loss weighs the tokens of a micro-batch differently")
    if facts.separate_losses:
        return Diagnosis("by_design", OWN_LOSSES)
    if facts.objective is None:
        return Diagnosis("unmeasured", weightless(facts))
    return _named(facts, facts.objective, past)


def weightless(facts: StepFacts) -> str:
    """Why a window with terms has no reading."""
    if any(seen.weight for seen in facts.terms):
        return "the token weights are too large or too small to add up"
    return "no token got any weight"


def _named(facts: StepFacts, reading: Objective, past: Sequence[Closed]) -> Diagnosis:
    balance = reading.ledger.balance / (facts.run.declared_scale or 1.0)
    k, ranks = facts.micro_batches, facts.run.world_size
    near = _Near(balance, facts.tolerance)
    lost = _undivided_term(facts, reading)
    if lost is not None:
        return Diagnosis("term_missing", reading=reading, ratio=k, term=lost)
    if near(1.0):
        return Diagnosis("fair", reading=reading)
    if _divides_by_padding(facts, reading):
        return Diagnosis("padding", reading=reading)
    if _is_sum(facts, reading):
        return Diagnosis("sum", reading=reading)
    full = next((c.micro_batches for c in reversed(past) if c.pattern == "fair"), None)
    if full is not None and full != k and near(k / full):
        return Diagnosis("partial", reading=reading, ratio=k / full)
    explained = _coefficient_explains(facts, reading, balance)
    if facts.averaged and near(ranks) and k != ranks:
        return Diagnosis("world_or_weight" if explained else "world", reading=reading, ratio=ranks)
    if _combined_off(facts, balance):
        return Diagnosis("world", reading=reading, ratio=round(balance, 6))
    if explained or _halved_squares(facts, reading, balance):
        return Diagnosis("coefficient", reading=reading)
    if any(_Near(r.ledger.balance, facts.tolerance)(1.0) for r in _together(facts, reading)):
        return Diagnosis("unmeasured", PARTS_OR_TASKS)
    summed = _reductions(facts, reading) <= {"sum", "none"}
    if ranks > 1 and (near(ranks) or near(1 / ranks)) and (summed or k != ranks):
        return Diagnosis("world", reading=reading, ratio=round(balance, 6))
    if k > 1 and near(k):
        return Diagnosis("missing", reading=reading, ratio=k)
    if k > 1 and near(1 / k):
        return Diagnosis("double", reading=reading, ratio=1 / k)
    return _by_history(facts, reading, balance, past)


def _by_history(
    facts: StepFacts, reading: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis:
    earlier = [c.balance for c in past if c.balance is not None and c.pattern != "fair"]
    scale = facts.run.declared_scale or 1.0
    if not earlier:
        return Diagnosis("pending", "one more window is needed", reading)
    wanders = any(abs(balance * scale / b - 1) > WANDERS * facts.tolerance for b in earlier)
    if wanders and reading.is_even(facts.tolerance) and not _by_hand(facts):
        return Diagnosis("wandering", reading=reading)
    divisor = _divisor(balance)
    alone = len(facts.record.micro_batches) == 1
    whole = 1 < divisor <= MOST_MICRO_BATCHES and _Near(balance, facts.tolerance)(1 / divisor)
    if alone and whole and not wanders and _one_divided_cross_entropy(facts):
        return Diagnosis("early_step", reading=reading, ratio=1 / divisor)
    return Diagnosis("constant", reading=reading)


def _divisor(balance: float) -> int:
    """The whole number whose reciprocal is nearest; 0 where none is in question.

    A balance may be any float: the reciprocal of a denormal one is infinite.
    """
    return round(1 / balance) if 0.5 / MOST_MICRO_BATCHES < balance < math.inf else 0


class _Near:
    def __init__(self, balance: float, tolerance: float) -> None:
        self._balance, self._tolerance = balance, tolerance

    def __call__(self, value: float) -> bool:
        return abs(self._balance / value - 1) <= self._tolerance


# ---------------------------------------------------------------------- evidence


def _combined_off(facts: StepFacts, balance: float) -> bool:
    """A loop that combines the ranks by itself is off by R, and so is the balance, equally."""
    factor, ranks = facts.all_reduce_factor, facts.run.world_size
    if factor is None:
        return False
    near = _Near(factor * ranks, facts.tolerance)
    return any(near(r) and _Near(balance, facts.tolerance)(r) for r in (ranks, 1 / ranks))


def _together(facts: StepFacts, reading: Objective) -> list[Objective]:
    """Readings in which several losses, of which one is read alone, are one."""
    names = ("kind", "main") if reading.name == "part" else ("kind",)
    return [r for r in facts.objectives if r.name in names]


def _of(facts: StepFacts, reading: Objective) -> list[WeightedTerm]:
    terms = {line.term for line in reading.ledger.lines}
    return [seen for seen in facts.terms if seen.term in terms]


def _reductions(facts: StepFacts, reading: Objective) -> set[str]:
    return {seen.loss_term.reduction for seen in _of(facts, reading)}


def _by_hand(facts: StepFacts) -> bool:
    """Whether the loss is a bare mean or sum: what one of its elements is, we cannot know."""
    return any(s.loss_term.kind.startswith(("MeanBackward", "SumBackward")) for s in facts.terms)


def _is_sum(facts: StepFacts, reading: Objective) -> bool:
    """Every token weighs 1, or 1 averaged over ranks or micro-batches: nothing divides by N."""
    if _by_hand(facts) or "mean" in _reductions(facts, reading) or reading.ledger.tokens <= 1:
        return False
    k, ranks = facts.micro_batches, facts.run.world_size
    weights = {line.weight for line in reading.ledger.lines if line.tokens}
    plain = (1.0, 1 / ranks, 1 / k, 1 / (k * ranks))
    return all(any(_Near(w, facts.tolerance)(p) for p in plain) for w in weights)


def _divides_by_padding(facts: StepFacts, reading: Objective) -> bool:
    """Each token's weight is 1/K over all positions of its micro-batch, padding included."""
    seen = _of(facts, reading)
    padded = any(s.loss_term.size != s.tokens for s in seen)
    if not padded or any(not s.loss_term.size for s in seen):
        return False
    share = facts.micro_batches * (facts.run.world_size if facts.averaged else 1)
    near = [s.weight * (s.loss_term.size or 0) * share for s in seen]
    return all(abs(n - 1) <= facts.tolerance for n in near)


def _coefficient_explains(facts: StepFacts, reading: Objective, balance: float) -> bool:
    """The loss is multiplied by a constant, and B is that constant."""
    coefficients = {number(seen.loss_term.coefficient) for seen in _of(facts, reading)}
    if len(coefficients) != 1:
        return False
    coefficient = coefficients.pop()
    return coefficient is not None and _Near(balance, facts.tolerance)(abs(coefficient) or 1.0)


def _halved_squares(facts: StepFacts, reading: Objective, balance: float) -> bool:
    """Half the mean squared error, as textbooks write it, though the half may be 1/K or 1/R."""
    kinds = {seen.loss_term.kind for seen in _of(facts, reading)}
    return kinds == {"MseLossBackward0"} and _Near(balance, facts.tolerance)(0.5)


def _one_divided_cross_entropy(facts: StepFacts) -> bool:
    terms = [seen.loss_term for seen in facts.terms]
    if len(terms) != len({(seen.rank, seen.micro_batch) for seen in facts.terms}):
        return False
    return all(t.kind.startswith("NllLoss") and t.undivided is False for t in terms)


def _undivided_term(facts: StepFacts, main: Objective) -> str | None:
    """A further term whose mean is added on every micro-batch without the division by K.

    Its balance is then K times its coefficient, where the main term's is 1. A coefficient into
    which the author folded the 1/K looks the same, so one that could be that is left alone.
    """
    k = facts.micro_batches
    names = {seen.term for seen in facts.terms}
    if k == 1 or len(names) == 1:
        return None
    if not main.is_fair(facts.tolerance, facts.run.declared_scale or 1.0):
        return None
    for name in sorted(names - {line.term for line in main.ledger.lines}):
        terms = [seen for seen in facts.terms if seen.term == name]
        coefficients = {number(seen.loss_term.coefficient) for seen in terms}
        means = all(s.loss_term.reduction == "mean" and s.loss_term.undivided for s in terms)
        if not means or len(terms) != k * len(facts.records) or len(coefficients) != 1:
            continue
        coefficient = coefficients.pop()
        balance = sum(s.tokens * s.weight for s in terms)
        if _Near(balance, facts.tolerance)(k * (coefficient or 1.0)) and _meant(coefficient, k):
            return name
    return None


def _meant(coefficient: float | None, k: int) -> bool:
    if coefficient is None:
        return True
    return _digits(coefficient) in _ROUND and _digits(coefficient * k) not in _ROUND


def _digits(value: float) -> float:
    """The decimal mantissa, 1 to 10, to three places: 0.025 -> 2.5."""
    mantissa = float(f"{abs(value):e}".split("e")[0])
    return round(mantissa, 3)
