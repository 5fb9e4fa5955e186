"""Infers tokens and weights of a loss function that hides its graph and reduces by itself.

A token is a row of the input whose gradient is not zero. There are two kinds of evidence for the
weight of a token; with neither, nothing is stated.

Exact. With a = the weight and p_i = the probability of the target, a cross entropy of logits
gives row i the gradient a * (p_i - 1) at the target and positive entries elsewhere that add up to
a * (1 - p_i) =: s_i. Such rows are recognised by their sums. The root of backward, if only factors
are between the two, is the sum of a * -log(p_i) = a * -log(1 - s_i / a), which falls strictly with
a: the equation has one solution. A weighted sum of cross entropies has such rows, too: the
solution is used only once ``PAIRS`` consecutive micro-batches obey one law (``a`` is constant, or
``a`` times the tokens is), which weights that depend on the token do not: a divisor that the caller
passes in may change from window to window, so ``SHARE`` of all pairs must agree.

Statistical. Otherwise the value of the function is compared with its token count over many
micro-batches of different sizes: a mean does not grow with the count, a sum is proportional to it.
Of the laws that fit, one must be ``ODDS`` times as likely as each other one, with differences
between consecutive micro-batches as the sample, because losses fall during training. This gives
the weights up to one common factor, so the balance remains unknown.

A token may have no gradient by chance: a hinge that is met, a clipped ratio. Such tokens may count
in a mean, and add to its value. Two checks recognise that: the total size of the rows, to which
they add nothing, must follow the same law, and if some rows have no gradient, the factors that the
loop applies in a window must follow a count that was observed. (A loop that weighs its means by the
tokens that it counts itself would otherwise seem to weigh them unequally.)
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from typing import Literal, NamedTuple

AGREE = 1e-4  # relative difference of two values that count as equal
AGREE_HALF = 1e-2  # the same, of factors that were rounded to fp16 or bf16
FLAT = 1e-3  # the least that an infinite weight must be off by, to be solved for
CLOSE = 1e-5  # the same, of a weight and a guess
PAIRS, SHARE = 3, 0.4  # consecutive micro-batches that must agree: how many, and of all
SAMPLES = 64  # micro-batches that are compared
ENOUGH = 12  # of them, before the statistical kind states anything
ODDS = 1e4
SPREAD = 1.3  # the largest token count over the smallest

Law = Literal["mean", "sum", "rows", "first"]


class Size(NamedTuple):
    """What a micro-batch may be divided by: tokens, all rows of the input, its first dimension."""

    tokens: int
    rows: int
    first: int

    def divisor(self, law: Law) -> float:
        """The divisor under a law."""
        return {"mean": self.tokens, "sum": 1, "rows": self.rows, "first": self.first}[law]


class Sample(NamedTuple):
    """A micro-batch: what the function returned, and the gradients that reached and left it."""

    size: Size
    value: float
    mass: float  # total size of the rows of its gradient, per unit of ``upstream``
    upstream: float
    half: bool = False  # whether ``upstream`` has rounding errors of half precision


@dataclass(slots=True)
class Evidence:
    """What the calls of one function have shown so far."""

    exact: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def add_exact(self, tokens: int, ratio: float) -> None:
        """A micro-batch whose token weight is ``ratio`` times the gradient at the function."""
        self.exact.append((tokens, ratio))

    @property
    def proved(self) -> bool:
        """Whether the solved weights obey a law: see above."""
        pairs = pairwise(self.exact)
        agreeing = sum(_obeys(*each) or _agree(each, before) for before, each in pairs)
        return agreeing >= PAIRS and agreeing >= SHARE * (len(self.exact) - 1)

    def add(self, sample: Sample) -> None:
        """A micro-batch. Its gradient may overflow where its loss is finite."""
        if 0 < sample.value < math.inf and 0 < sample.mass < math.inf and sample.size.tokens > 0:
            self.samples.append(sample)

    def law(self) -> Law | None:
        """The law of the function's divisor; None if none is ``ODDS`` times likelier."""
        counts = [sample.size.tokens for sample in self.samples]
        if len(counts) < ENOUGH or max(counts) < SPREAD * min(counts):
            return None
        ranked = self._ranked([sample.value for sample in self.samples])
        least, best = ranked[0]
        others = [each for each in ranked[1:] if not self._same(each[1], best)]
        if not others or not math.isfinite(least):
            return None
        # ratio of the likelihoods of two normal distributions with unknown variances
        exponent = (len(counts) - 1) / 2 * math.log(others[0][0] / max(least, 1e-30))
        by_mass = self._ranked([sample.mass for sample in self.samples])[0][1]
        if exponent < math.log(ODDS) or not self._same(by_mass, best):
            return None
        return best

    def _ranked(self, values: list[float]) -> list[tuple[float, Law]]:
        """The laws, the one that fits best first."""
        ranked = [(self._scatter(law, values), law) for law in _LAWS]
        return sorted(ranked, key=lambda each: each[0])

    def _scatter(self, law: Law, values: list[float]) -> float:
        """Mean square of the changes of log(value * divisor / tokens) between micro-batches."""
        sizes = [sample.size for sample in self.samples]
        logs = [
            math.log(value * size.divisor(law) / size.tokens)
            for size, value in zip(sizes, values, strict=True)
        ]
        changes = [(b - a) ** 2 for a, b in pairwise(logs)]
        return sum(changes) / len(changes)

    def _same(self, one: Law, other: Law) -> bool:
        """Whether the divisors of two laws are in a fixed ratio in all micro-batches."""
        ratios = [size.divisor(one) / size.divisor(other) for size, *_ in self.samples]
        return max(ratios) < min(ratios) * (1 + AGREE)


_LAWS: tuple[Law, ...] = ("mean", "sum", "rows", "first")  # of two that fit alike, the first


class Window:
    """The micro-batches of one window that call one function."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    @cached_property
    def counts_are_known(self) -> bool:
        """Whether each row has a gradient, or the factors of the loop follow an observed count.

        They are equal, or in the ratio of one count, or of a count and another. Read once all
        samples are there.
        """
        if all(sample.size.tokens == sample.size.rows for sample in self.samples):
            return True
        tolerance = AGREE_HALF if any(sample.half for sample in self.samples) else AGREE
        counts = [(1, *sample.size) for sample in self.samples]
        for above, below in product(range(len(counts[0])), repeat=2):
            factors = [
                sample.upstream * count[above] / count[below]
                for sample, count in zip(self.samples, counts, strict=True)
            ]
            if all(_equal(factor, factors[0], tolerance) for factor in factors):
                return True
        return False


def _obeys(tokens: int, ratio: float) -> bool:
    """Whether it is the mean or the sum itself."""
    return _equal(ratio * tokens, 1.0) or _equal(ratio, 1.0)


def _agree(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Whether two micro-batches of different sizes have one divisor, or divisors per token."""
    if one[0] == other[0]:
        return False
    return _equal(one[1], other[1]) or _equal(one[0] * one[1], other[0] * other[1])


def _equal(one: float, other: float, tolerance: float = AGREE) -> bool:
    return abs(one - other) <= tolerance * abs(other)


def token_weight(errors: list[float], value: float, guesses: tuple[float, ...]) -> float | None:
    """The a > 0 with sum of ``-a * log(1 - s / a)`` over the errors s equal to ``value``.

    The sum falls from infinity, at a = max(s), to the sum of the errors, for a without bound.
    None if there is no such a, or if the sum depends on it too little to be solved. ``guesses``
    save most of the evaluations.
    """
    largest, total = max(errors, default=0.0), math.fsum(errors)
    if largest <= 0 or not value > total * (1 + FLAT):
        return None
    for guess in guesses:
        if _value(errors, guess * (1 - CLOSE)) > value > _value(errors, guess * (1 + CLOSE)):
            return guess
    low, high = largest, 2 * largest
    while _value(errors, high) > value:
        low, high = high, 2 * high
    while high - low > CLOSE / 10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _value(errors, middle) > value else (low, middle)
    return high


def _value(errors: list[float], a: float) -> float:
    return a * -math.fsum(math.log1p(-s / a) if s < a else -math.inf for s in errors)
