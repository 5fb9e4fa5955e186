"""Small charts of the evidence of a finding, as SVG attributes for the page itself.

They need no script: they appear at first paint, on paper and in e-mail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradledger_web import chart_svg, formatting

WIDTH, HEIGHT = 100.0, 40.0
_MARGIN = 3.0
LEAST_STEPS = 50  # a tenth of the steps of a finding, or of this many, is shown around them
POINTS = 100  # of a line
# Constant between their changes.
STEPPED = ("scale", "skipped", "samples", "micro_batches", "collectives")

LABELS = {
    "misallocation": "misallocation d",
    "balance": "balance B",
    "clip_norm": "norm before clipping",
    "norm": "gradient norm",
    "scale": "loss scale",
    "skipped": "steps that were skipped",
    "lr": "learning rate",
    "micro_batches": "micro-batches",
    "largest_norm": "largest norm of a rank",
    "collectives": "collectives in the backwards of a step",
    "samples": "samples in a step",
    "tokens": "tokens in a step",
    "loss_reported": "reported loss",
    "loss_token": "token-weighted loss",
}


@dataclass(frozen=True)
class LineChart:
    """A figure over some steps, with the steps of a finding marked.

    The coordinates in ``path``, ``dots``, ``left`` and ``width`` are in a box of ``WIDTH`` by
    ``HEIGHT``.
    """

    label: str
    path: str
    left: float
    width: float
    first: int
    last: int
    marked: tuple[int, int]
    top: str
    bottom: str

    @property
    def alt_text(self) -> str:
        """The chart as text."""
        steps = f"steps {self.first:,} to {self.last:,}"
        marked = f"step {self.marked[0]:,}"
        if self.marked[1] > self.marked[0]:
            marked = f"steps {self.marked[0]:,} to {self.marked[1]:,}"
        return f"{self.label} in {steps}, between {self.bottom} and {self.top}; marked: {marked}"


def line_chart(
    figure: str, steps: Sequence[int], values: Sequence[float | None], first: int, last: int
) -> LineChart | None:
    """The chart of a figure, marked from ``first`` to ``last``; None without data.

    Values that are not finite leave gaps.
    """
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if not finite or not steps:
        return None
    low, high = chart_svg.at_least(figure, min(finite), max(finite))
    log = chart_svg.spans_decades(figure, low, high)
    height: Callable[[float], float] = math.log10 if log else float
    x = _scale(steps[0] - 0.5, steps[-1] + 0.5, 0, WIDTH)
    linear_y = _scale(height(low), height(high), HEIGHT - _MARGIN, _MARGIN)

    def y(value: float) -> float:
        return linear_y(height(value))

    points = [
        (x(step), y(value) if value is not None and math.isfinite(value) else None)
        for step, value in zip(steps, values, strict=True)
    ]
    marked = max(first, steps[0]), min(last, steps[-1])
    left, right = x(marked[0] - 0.5), x(marked[1] + 0.5)
    text_of = formatting.percent if figure == "misallocation" else formatting.figure
    return LineChart(
        label=LABELS[figure] + (" (log scale)" if log else ""),
        path=_path(points, stepped=figure in STEPPED),
        left=left,
        width=round(max(right - left, 0.5), 2),
        first=steps[0],
        last=steps[-1],
        marked=(first, last),
        top=text_of(high),
        bottom=text_of(low),
    )


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    if high == low:
        return lambda value: round((start + end) / 2, 2)
    factor = (end - start) / (high - low)
    return lambda value: round(start + (value - low) * factor, 2)


def _path(points: Sequence[tuple[float, float | None]], stepped: bool) -> str:
    parts, drawing = [], False
    for x, y in points:
        if y is not None and drawing and stepped:
            parts.append(f"H{x:g}V{y:g}")
        elif y is not None:
            parts.append(f"{'L' if drawing else 'M'}{x:g} {y:g}")
        drawing = y is not None
    return "".join(parts)


@dataclass(frozen=True)
class LayerChart:
    """The gradient of each layer, in the order of the model; a layer without one leaves a gap."""

    path: str
    first: str
    last: str
    top: str
    bottom: str

    @property
    def alt_text(self) -> str:
        """The chart as text."""
        return (
            f"gradient RMS of each layer from {self.first} to {self.last}, "
            f"between {self.bottom} and {self.top}"
        )


def layer_chart(gradients: Sequence[float | None], first: str, last: str) -> LayerChart | None:
    """The RMS of the gradient by layer on a logarithmic scale; None if fewer than two have one."""
    heights = [math.log10(v) if v is not None and 0 < v < math.inf else None for v in gradients]
    drawn = [height for height in heights if height is not None]
    if len(drawn) < 2:
        return None
    low, high = min(drawn), max(drawn)
    x = _scale(0, len(heights) - 1, _MARGIN, WIDTH - _MARGIN)
    y = _scale(low, high, HEIGHT - _MARGIN, _MARGIN)
    points = [(x(i), None if height is None else y(height)) for i, height in enumerate(heights)]
    top, bottom = formatting.figure(10**high), formatting.figure(10**low)
    return LayerChart(_path(points, stepped=False), first, last, top, bottom)


@dataclass(frozen=True)
class ShareBar:
    """The share of tokens and the share of gradient of one micro-batch, as heights of bars."""

    label: str
    x: float
    tokens: float
    gradient: float
    alt_text: str


@dataclass(frozen=True)
class ShareBars:
    """A window: the share of tokens of each micro-batch beside its share of the gradient."""

    step: int
    bars: tuple[ShareBar, ...]
    bar_width: float
    top: str
    by: str  # what the labels of the bars are

    @property
    def alt_text(self) -> str:
        """The chart as text."""
        return "; ".join(bar.alt_text for bar in self.bars)


MOST_BARS = 16
MOST_WIDE_BARS = 8  # with labels such as 1015/2


def share_bars(
    step: int, labels: Sequence[str], tokens: Sequence[float], gradient: Sequence[float]
) -> ShareBars:
    """The chart of a step; of many micro-batches, those with the largest difference."""
    by_difference = sorted(range(len(labels)), key=lambda i: -abs(tokens[i] - gradient[i]))
    most = MOST_BARS if max(map(len, labels), default=0) <= 3 else MOST_WIDE_BARS
    chosen = sorted(by_difference[:most])
    top = max((share for i in chosen for share in (tokens[i], gradient[i])), default=1.0) or 1.0
    slot = WIDTH / max(len(chosen), 1)
    bar_width = min(slot * 0.36, 8.0)
    by = "rank/micro-batch" if any("/" in label for label in labels) else "micro-batch"
    bars = tuple(
        ShareBar(
            labels[index],
            round(slot * (position + 0.5) - bar_width, 2),
            round(tokens[index] / top * HEIGHT, 2),
            round(gradient[index] / top * HEIGHT, 2),
            f"{by} {labels[index]}: {formatting.percent(tokens[index])} of the tokens, "
            f"{formatting.percent(gradient[index])} of the gradient",
        )
        for position, index in enumerate(chosen)
    )
    return ShareBars(step, bars, round(bar_width, 2), formatting.percent(top), by)
