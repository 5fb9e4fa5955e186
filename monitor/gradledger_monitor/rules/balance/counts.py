"""Whether what divides the loss is a count, in window after window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.evidence import common_coefficient
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

Part = Literal["window", "first", "last", "previous"]


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
        for constant in (scale, scale * abs(common_coefficient(objective) or 1.0))
    )


def _is_count(tokens: float, balance: float, multiples: Sequence[int]) -> bool:
    if not tokens or not balance or not math.isfinite(tokens / balance):
        return True  # it is not known
    counts = [tokens / balance * multiple for multiple in multiples]
    return any(count > 0.5 and abs(count - round(count)) <= EXACT * count for count in counts)


class _Divided(NamedTuple):
    """A window whose divisor, the reciprocal of an element's weight, is known."""

    divisor: float
    micro_batches: int
    counts: dict[tuple[str, str], Counts]  # by objective and unit
    previous: dict[tuple[str, str], Counts]  # of the window before it


def followed_count(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> Followed | None:
    """The count that the divisor follows from window to window, whatever constant is between them.

    A count of the whole window comes first: that is a right one. The others do not follow it: K
    times what the first or the last micro-batch has, and what the window before has.
    """
    windows = list(_divided(facts, objective, past))[-FOLLOWED:]
    now = windows[-1]
    for part, of in _PARTS.items():
        fitting = []
        for key, counts in now.counts.items():
            series = [of(window, key) for window in windows]
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


def _of_previous(window: _Divided, key: tuple[str, str]) -> float:
    return window.previous[key].window if key in window.previous else 0.0


_PARTS: dict[Part, Callable[[_Divided, tuple[str, str]], float]] = {
    "window": lambda w, key: w.counts[key].window if key in w.counts else 0.0,
    "first": lambda w, key: w.counts[key].first * w.micro_batches if key in w.counts else 0.0,
    "last": lambda w, key: w.counts[key].last * w.micro_batches if key in w.counts else 0.0,
    "previous": _of_previous,
}


def _divided(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> Iterator[_Divided]:
    """The wrong windows of this objective, and this one."""
    for before, closed in zip((None, *past), past, strict=False):
        own = closed.counts[:1]
        if own and own[0].objective == objective.name and closed.balance and closed.tokens:
            previous = before.counts if before is not None else ()
            divisor = closed.tokens / closed.balance
            yield _Divided(divisor, closed.micro_batches, _by_key(closed.counts), _by_key(previous))
    ledger, previous = objective.ledger, past[-1].counts if past else ()
    counts = _by_key(tuple(counts_of(facts)))
    k = facts.micro_batches_of(objective)
    yield _Divided(ledger.tokens / (ledger.balance or math.inf), k, counts, _by_key(previous))


def _by_key(counts: tuple[Counts, ...]) -> dict[tuple[str, str], Counts]:
    return {(each.objective, each.unit): each for each in counts}
