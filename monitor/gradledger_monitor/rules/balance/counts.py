"""Whether what divides the loss is a count, in window after window."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.evidence import common_coefficient
from gradledger_monitor.rules.balance.patterns import Closed, wrong_windows

NO_COUNT = (
    "the balance differs between windows, and what divides the loss is no whole number: it may be "
    'a weight that follows from the data; if that is intended, declare contract="sample"'
)
EXACT = 2e-5  # relative: weights and the factor after backward have float32 rounding errors
MOST_EXACT = 5_000.0  # tokens, above which many numbers are nearly whole


def divisors_are_counts(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> bool:
    """Whether what divides the loss is a whole number, or one over K, over R, or over both.

    In this window, and in the last wrong ones. A wrong divisor is a count of something else; a loss
    that is divided by its value, or weighted by its data, has none. Rounding may hide it.
    """
    if facts.record.half_precision or objective.ledger.tokens >= MOST_EXACT:
        return True
    now, ranks = objective.ledger, facts.run.world_size
    windows = [(facts.micro_batches_of(objective), now.tokens, now.balance)]
    for closed in wrong_windows(past)[-3:]:
        windows.append((closed.micro_batches, closed.tokens or 0.0, closed.balance or 0.0))
    scale = facts.run.declared_scale or 1.0
    return any(
        all(_is_count(n * constant, b, (1, k, ranks, k * ranks)) for k, n, b in windows)
        for constant in (scale, scale * abs(common_coefficient(objective) or 1.0))
    )


def _is_count(tokens: float, balance: float, multiples: Sequence[int]) -> bool:
    if not tokens or not balance or not math.isfinite(tokens / balance):
        return True  # it is not known
    counts = [tokens / balance * multiple for multiple in multiples]
    return any(count > 0.5 and abs(count - round(count)) <= EXACT * count for count in counts)
