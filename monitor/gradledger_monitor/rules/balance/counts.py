"""Whether what divides the loss is a count, in window after window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.patterns import (
    VARIES,
    Closed,
    Counts,
    counts_of,
    wrong_windows,
)

NO_COUNT = (
    "the balance differs between windows, and what divides the loss is no whole number: it may be "
    'a weight that follows from the data; if that is intended, declare contract="sample"'
)
EXACT = 2e-5  # relative: weights and the factor after backward have float32 rounding errors
MOST_EXACT = 5_000.0  # tokens, above which many numbers are nearly whole
# Windows in which a divisor must follow a count, and different counts in them. Of 36 series of
# numbers up to 10, one fits the divisors of 6 windows by chance with a probability of 4e-4.
FOLLOWED, SHOWN = 6, 3

Part = Literal["window", "first", "last", "previous"]  # in the order in which they are tried


class Followed(NamedTuple):
    """A count that the divisor of the main objective is proportional to in several windows."""

    part: Part
    counts: Counts  # of this window
    divisor: float  # the count that divides this window
    ratio: float  # of the divisor to it
    windows: int
    is_shown: bool  # by enough windows with different counts


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
        for constant in (scale, scale * abs(objective.coefficient or 1.0))
    )


def _is_count(tokens: float, balance: float, multiples: Sequence[int]) -> bool:
    if not tokens or not balance or not math.isfinite(tokens / balance):
        return True  # it is not known
    counts = [tokens / balance * multiple for multiple in multiples]
    return any(count > 0.5 and abs(count - round(count)) <= EXACT * count for count in counts)


class _Divided(NamedTuple):
    """A window whose divisor, the reciprocal of an element's weight, is known."""

    divisor: float
    counts: dict[tuple[Part, str, str], float]  # by objective and unit: what it may follow


def followed_count(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> Followed | None:
    """The count that the divisor follows from window to window, whatever constant is between them.

    A count of the whole window comes first: that is a right one. The others do not follow it: K
    times what the first or the last micro-batch has, and what the window before has.
    """
    windows = list(_divided(facts, objective, past))[-FOLLOWED:]
    own = list(counts_of(facts))
    for part in get_args(Part):
        fitting = []
        for counts in own:
            key = (part, counts.objective, counts.unit)
            series = [window.counts.get(key, 0.0) for window in windows]
            if not all(series):
                continue
            ratios = [window.divisor / c for window, c in zip(windows, series, strict=True)]
            distinct = len({round(count, 6) for count in series})
            least, most = min(ratios), max(ratios)
            if distinct > 1 and 0 < most <= least * (1 + VARIES * EXACT) < math.inf:
                shown = distinct >= SHOWN and len(series) == FOLLOWED
                fitting.append(Followed(part, counts, series[-1], ratios[-1], len(windows), shown))
        if fitting:  # a box may be counted, or its four numbers
            return min(fitting, key=lambda each: abs(math.log(each.ratio)))
    return None


def _divided(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> Iterator[_Divided]:
    """The wrong windows of this objective, and this one."""
    previous: tuple[Counts, ...] = ()
    for closed in past:
        own = closed.counts[:1]
        if own and own[0].objective == objective.name and closed.balance and closed.tokens:
            candidates = _candidates(closed.micro_batches, closed.counts, previous)
            yield _Divided(closed.tokens / closed.balance, candidates)
        previous = closed.counts
    ledger, k = objective.ledger, facts.micro_batches_of(objective)
    candidates = _candidates(k, counts_of(facts), previous)
    yield _Divided(ledger.tokens / (ledger.balance or math.inf), candidates)


def _candidates(
    k: int, counts: Iterable[Counts], previous: Iterable[Counts]
) -> dict[tuple[Part, str, str], float]:
    candidates: dict[tuple[Part, str, str], float] = {}
    for each in counts:
        candidates["window", each.objective, each.unit] = each.window
        candidates["first", each.objective, each.unit] = k * each.first
        candidates["last", each.objective, each.unit] = k * each.last
    for each in previous:
        candidates["previous", each.objective, each.unit] = each.window
    return candidates
