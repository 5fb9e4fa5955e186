"""Small pictures that are part of the page itself: the evidence of a finding, as SVG attributes.

They need no script, so that they are there at first paint, on paper and in a mail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradledger_web import formatting

WIDTH, HEIGHT = 100.0, 40.0
_MARGIN = 3.0
STEPS_AROUND = 25  # steps before and after the first one that shows a finding

LABELS = {
    "misallocation": "misallocation d",
    "balance": "balance B",
    "clip_norm": "norm before clipping",
    "norm": "gradient norm",
    "scale": "loss scale",
    "lr": "learning rate",
    "micro_batches": "micro-batches",
    "largest_norm": "largest norm of a rank",
    "collectives": "collectives in a step",
    "samples": "samples in a step",
    "tokens": "tokens in a step",
    "loss_reported": "reported loss",
}


@dataclass(frozen=True)
class LineChart:
    """A figure over some steps, with the steps marked that show a finding.

    ``path`` and ``dots`` lie in a box of ``WIDTH`` by ``HEIGHT``, as do ``left`` and ``width``.
    """

    label: str
    path: str
    dots: tuple[tuple[float, float], ...]
    left: float
    width: float
    first: int
    last: int
    marked: tuple[int, int]
    top: str
    bottom: str

    @property
    def told(self) -> str:
        """The picture in words."""
        steps = f"steps {self.first:,} to {self.last:,}"
        seen = f"step {self.marked[0]:,}"
        if self.marked[1] > self.marked[0]:
            seen = f"steps {self.marked[0]:,} to {self.marked[1]:,}"
        return f"{self.label} in {steps}, between {self.bottom} and {self.top}; marked: {seen}"


def line_chart(
    figure: str, steps: Sequence[int], values: Sequence[float | None], first: int, last: int
) -> LineChart | None:
    """The picture of a figure, marked from a finding's first step to its last; None without data.

    A value that is no finite number leaves a gap.
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known or not steps:
        return None
    low, high = min(known), max(known)
    x = _scale(steps[0] - 0.5, steps[-1] + 0.5, 0, WIDTH)
    y = _scale(low, high, HEIGHT - _MARGIN, _MARGIN)
    points = [
        (x(step), y(value) if value is not None and math.isfinite(value) else None)
        for step, value in zip(steps, values, strict=True)
    ]
    marked = max(first, steps[0]), min(last, steps[-1])
    left, right = x(marked[0] - 0.5), x(marked[1] + 0.5)
    written = formatting.percent if figure == "misallocation" else formatting.figure
    return LineChart(
        label=LABELS[figure],
        path=_path(points),
        dots=tuple((at, height) for at, height in points if height is not None)[:200],
        left=left,
        width=round(max(right - left, 0.5), 2),
        first=steps[0],
        last=steps[-1],
        marked=(first, last),
        top=written(high),
        bottom=written(low),
    )


@dataclass(frozen=True)
class _Scale:
    start: float
    per: float
    to: float

    def __call__(self, value: float) -> float:
        return round(self.to + (value - self.start) * self.per, 2)


def _scale(low: float, high: float, start: float, end: float) -> _Scale:
    if high == low:
        return _Scale(low, 0.0, (start + end) / 2)
    return _Scale(low, (end - start) / (high - low), start)


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    parts, drawing = [], False
    for x, y in points:
        if y is not None:
            parts.append(f"{'L' if drawing else 'M'}{x:g} {y:g}")
        drawing = y is not None
    return "".join(parts)


@dataclass(frozen=True)
class ShareBar:
    """What one micro-batch held and what it got, as heights of two bars."""

    label: str
    x: float
    held: float
    got: float
    told: str


@dataclass(frozen=True)
class ShareBars:
    """A window: the share of tokens of each micro-batch beside its share of the gradient."""

    step: int
    bars: tuple[ShareBar, ...]
    bar: float  # width of one
    most: str

    @property
    def told(self) -> str:
        """The picture in words."""
        return "; ".join(pair.told for pair in self.bars)


MOST_PAIRS = 16


def share_bars(
    step: int, labels: Sequence[str], held: Sequence[float], got: Sequence[float]
) -> ShareBars:
    """The picture of a step; of many micro-batches, the most unjust ones in their order."""
    order = sorted(range(len(labels)), key=lambda at: -abs(held[at] - got[at]))[:MOST_PAIRS]
    chosen = sorted(order)
    most = max((*held, *got, 1e-9))
    place = WIDTH / max(len(chosen), 1)
    bar = min(place * 0.36, 8.0)
    bars = tuple(
        ShareBar(
            labels[at],
            round(place * (n + 0.5) - bar, 2),
            round(held[at] / most * HEIGHT, 2),
            round(got[at] / most * HEIGHT, 2),
            f"micro-batch {labels[at]}: {formatting.percent(held[at])} of the tokens, "
            f"{formatting.percent(got[at])} of the gradient",
        )
        for n, at in enumerate(chosen)
    )
    return ShareBars(step, bars, round(bar, 2), formatting.percent(most))
