"""Whether what divides the loss is a count, in window after window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from gradledger_monitor.model.losses.term_weights import outermost_constant
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.token_ledger import total
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


@dataclass
class StepsOfOne:
    """Steps on one micro-batch each, all divided by one number."""

    divisor: float
    first: int
    last: int
    tokens: float  # of all of them

    @property
    def micro_batches(self) -> int:
        """The micro-batches of the window that is meant, if these are all of it."""
        return self.last - self.first + 1

    @property
    def is_window(self) -> bool:
        """Whether the divisor is the number of all their tokens."""
        return abs(self.tokens - self.divisor) <= EXACT * self.divisor


def steps_of_one_window(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> StepsOfOne | None:
    """The last steps that show one window, if steps on one micro-batch are the parts of windows.

    Each is divided by the same count, which is what their tokens add up to. One window of three
    steps shows it, or two windows. One that does not add up shows the contrary, unless more of its
    steps follow, or its first ones may not be remembered.
    """
    if not objective.reading.is_even(facts.tolerance) or facts.micro_batches_of(objective) != 1:
        return None
    steps = [(c.step, c.tokens or 0.0, c.balance or 0.0) for c in past if c.micro_batches == 1]
    steps.append((facts.step, objective.ledger.tokens, objective.ledger.balance))
    windows: list[StepsOfOne] = []
    for step, tokens, balance in steps:
        divisor = tokens / balance if balance else math.inf
        if not 0 < divisor < math.inf:
            return None
        last = windows[-1] if windows else None
        same = last is not None and abs(divisor - last.divisor) <= EXACT * divisor
        if last is None or last.is_window or step != last.last + 1 or not same:
            windows.append(StepsOfOne(divisor, step, step, tokens))
        else:
            last.last, last.tokens = step, last.tokens + tokens
    if not all(window.is_window for window in windows[1:-1]):
        return None
    shown = [each for each in windows if each.is_window and each.micro_batches > 1]
    enough = len(shown) > 1 or any(each.micro_batches > 2 for each in shown)
    return shown[-1] if enough and windows[-1].tokens <= windows[-1].divisor * (1 + EXACT) else None


def divides_by_count_beside(
    facts: StepFacts, objective: Objective, past: Sequence[Closed] | None = None
) -> bool:
    """Whether an element weighs one over what the other losses of one kind count in the window.

    A detector divides the losses of its classes and of its boxes by the number of boxes. The
    losses of each image may be separate ones. With ``past``, only counts that follow the data, and
    not the samples of a batch.
    """
    counts: dict[tuple[str, str], float] = {}
    for other in facts.objectives:
        if other is objective or other.is_penalty:
            continue
        if past is not None and not _follows_data(other, past):
            continue
        by_unit = {
            "tokens": total(term.tokens for term in other.terms),
            "positions": total(term.loss_term.positions or 0.0 for term in other.terms),
            "shown": other.ledger.tokens,
        }
        for unit, count in by_unit.items():
            counts[other.kind, unit] = counts.get((other.kind, unit), 0.0) + count
    constant = abs(objective.coefficient or 1.0) * (facts.run.declared_scale or 1.0)
    divisor = constant * objective.ledger.tokens / (objective.ledger.balance or math.inf)
    return any(abs(count - divisor) <= facts.tolerance * divisor for count in counts.values())


def _follows_data(objective: Objective, past: Sequence[Closed]) -> bool:
    """Whether its count differs between micro-batches, or between windows."""
    key, tokens = (objective.name, "tokens"), [term.tokens for term in objective.terms]
    totals = {each.window for closed in past for each in closed.counts if each[:2] == key}
    return len(set(tokens)) > 1 or len(totals | {total(tokens)}) > 1


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


def tokens_by_index(objective: Objective) -> set[float]:
    """The tokens of the micro-batches of each index, over all ranks."""
    totals: dict[int, float] = {}
    for line in objective.ledger.lines:
        totals[line.micro_batch] = totals.get(line.micro_batch, 0.0) + line.tokens
    return set(totals.values())


def is_multiplied_by_own_samples(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> bool:
    """Whether nothing divides the losses, and each is multiplied by the size of its batch.

    One batch of the window, on each rank, is short, and windows before had none that was short.
    """
    micro_batches = sum(map(len, facts.applied_by_rank.values()))
    if not facts.samples or not objective.is_undivided:
        return False
    if not objective.has_one_term_in_each_of(micro_batches):
        return False
    of_ranks: dict[int, list[float]] = {}
    for term in objective.terms:
        factor = outermost_constant(term.loss_term) or 0.0
        of_ranks.setdefault(term.rank, []).append(factor)
    full = max(map(max, of_ranks.values()))
    short = sum(len(each) - each.count(full) for each in of_ranks.values())
    one_each = all(len(each) - each.count(full) <= 1 for each in of_ranks.values())
    size = full * len(of_ranks)
    usual = any(closed.samples == closed.micro_batches * size for closed in past)
    whole = sum(map(sum, of_ranks.values())) == facts.samples
    return short > 0 and one_each and usual and whole
