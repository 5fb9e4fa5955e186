"""The arithmetic of the ledger (DESIGN section 2): token weights, balance, misallocation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass
class Weighed:
    """``tokens`` tokens, each of which got ``weight`` in the gradient that was applied.

    Tokens are a count, or a sum of class weights where those are what the loss divides by.
    """

    rank: int
    micro_batch: int
    term: str
    tokens: float
    weight: float

    # Written out, as wherever an object is made at every step: compiled, too, what a dataclass
    # makes is run by the interpreter.
    def __init__(
        self, rank: int, micro_batch: int, term: str, tokens: float, weight: float
    ) -> None:
        self.rank, self.micro_batch, self.term = rank, micro_batch, term
        self.tokens, self.weight = tokens, weight


@dataclass
class Entry:
    """A line of the ledger; ``relative`` is rho: 1 is the fair weight."""

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
    ``misallocation`` is d, the share of gradient weight on the wrong tokens: the total variation
    distance between the weights and a fair share, 0 to 1.
    """

    tokens: float
    balance: float
    misallocation: float
    lines: Sequence[Weighed]

    def __init__(
        self, tokens: float, balance: float, misallocation: float, lines: Sequence[Weighed]
    ) -> None:
        self.tokens, self.balance, self.misallocation = tokens, balance, misallocation
        self.lines = lines

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The lines that have tokens, with what each of them makes of the whole."""
        some = [line for line in self.lines if line.tokens]
        return tuple([_entry(line, self.tokens, self.balance) for line in some])


def account(lines: Sequence[Weighed]) -> Ledger | None:
    """The ledger of a window; None when no token got any weight, or the sums are not finite."""
    tokens = sum([line.tokens for line in lines])
    balance = total([line.tokens * line.weight for line in lines])
    if tokens == 0 or balance == 0 or not math.isfinite(balance) or not math.isfinite(tokens):
        return None
    off = total([abs(one.tokens * one.weight / balance - one.tokens / tokens) for one in lines])
    # weights of both signs may cancel to a balance by which none of them can be divided
    return Ledger(tokens, balance, off / 2, lines) if math.isfinite(off) else None


def total(values: Iterable[float]) -> float:
    """The exact sum; NaN where a value, or the sum, is not a finite number."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan


def _entry(line: Weighed, tokens: float, balance: float) -> Entry:
    # divided first: near the largest float, weight times all tokens is more than a float holds
    relative = line.weight / balance * tokens
    share = line.tokens * line.weight / balance
    return Entry(line.rank, line.micro_batch, line.term, line.tokens, line.weight, relative, share)
