"""The arithmetic of the ledger (DESIGN section 2): token weights, balance, misallocation.

For lines ``i`` with ``n_i`` tokens of weight ``w_i`` each:

    N     = sum of n_i                                   tokens of the window
    B     = sum of n_i * w_i                             balance
    rho_i = w_i * N / B                                  relative weight; 1 is fair
    d     = 1/2 * sum of |n_i * w_i / B - n_i / N|       misallocation, 0 to 1

``d`` is the total variation distance between the weights and equal weights, and equals
1/2 * sum of (n_i / N) * |rho_i - 1|.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass
class WeightedTokens:
    """``tokens`` tokens of one loss term, each with ``weight`` in the applied gradient.

    Tokens are a count, or a sum of class weights if the loss divides by those.
    """

    rank: int
    micro_batch: int
    term: str
    tokens: float
    weight: float

    # Written by hand, as in every class of which each step creates objects: mypyc leaves the
    # __init__ that a dataclass generates to the interpreter.
    def __init__(
        self, rank: int, micro_batch: int, term: str, tokens: float, weight: float
    ) -> None:
        self.rank, self.micro_batch, self.term = rank, micro_batch, term
        self.tokens, self.weight = tokens, weight


@dataclass
class Entry:
    """A line of the ledger as it is shown; ``relative`` is rho: 1 is the fair weight."""

    rank: int
    micro_batch: int
    term: str
    tokens: float
    weight: float
    relative: float
    share: float  # of the window's gradient weight


@dataclass
class Ledger:
    """One window's account over all ranks.

    ``tokens`` is N; ``balance`` is B, the sum of all token weights, 1 in a token-mean run;
    ``misallocation`` is d, the share of gradient weight on the wrong tokens, 0 to 1.
    """

    tokens: float
    balance: float
    misallocation: float
    lines: Sequence[WeightedTokens]

    def __init__(
        self, tokens: float, balance: float, misallocation: float, lines: Sequence[WeightedTokens]
    ) -> None:
        self.tokens, self.balance, self.misallocation = tokens, balance, misallocation
        self.lines = lines

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The lines that have tokens, each with its relative weight and its share."""
        lines = [line for line in self.lines if line.tokens]
        return tuple([_entry(line, self.tokens, self.balance) for line in lines])

    def weights_of_micro_batches(self) -> list[float]:
        """The sum of the token weights of each micro-batch of each rank."""
        totals: dict[tuple[int, int], float] = {}
        for line in self.lines:
            key = (line.rank, line.micro_batch)
            totals[key] = totals.get(key, 0.0) + line.tokens * line.weight
        return list(totals.values())


def build_ledger(lines: Sequence[WeightedTokens]) -> Ledger | None:
    """The ledger of a window; None if no token has any weight, or the sums are not finite."""
    tokens = sum([line.tokens for line in lines])
    balance = total([line.tokens * line.weight for line in lines])
    if tokens == 0 or balance == 0 or not math.isfinite(balance) or not math.isfinite(tokens):
        return None
    distance = total(
        [abs(line.tokens * line.weight / balance - line.tokens / tokens) for line in lines]
    )
    # weights of both signs may cancel to a balance too small to divide them by
    return Ledger(tokens, balance, distance / 2, lines) if math.isfinite(distance) else None


def total(values: Iterable[float]) -> float:
    """The exact sum; NaN if a value, or the sum, is not a finite number."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan


def _entry(line: WeightedTokens, tokens: float, balance: float) -> Entry:
    # divided first: near the largest float, weight * tokens overflows
    relative = line.weight / balance * tokens
    share = line.tokens * line.weight / balance
    return Entry(line.rank, line.micro_batch, line.term, line.tokens, line.weight, relative, share)
