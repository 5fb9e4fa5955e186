"""Charts that need no script: the coordinates of an SVG with curves and axes.

For documents that are read without the service: a post-mortem attached to an incident.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradledger_web import formatting

WIDTH, HEIGHT = 460.0, 170.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 8.0, 8.0, 20.0
LARGEST = 1e300  # a scale holds values from 1 / LARGEST to LARGEST

Values = Sequence[float | None]
Span = tuple[int, int]


@dataclass(frozen=True)
class Curve:
    """One figure: its values by step, and the extremes if a point stands for several steps."""

    label: str
    colour: str
    values: Values
    low: Values | None = None
    high: Values | None = None
    dash: str = "solid"


@dataclass(frozen=True)
class Tick:
    """A position on an axis and its label."""

    position: float
    text: str


@dataclass(frozen=True)
class CurvePath:
    """One curve as SVG paths; ``band`` is the area between the extremes."""

    label: str
    colour: str
    path: str
    band: str
    dash: str


@dataclass(frozen=True)
class Plot:
    """A chart, ready for a template."""

    title: str
    curves: tuple[CurvePath, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marked: tuple[tuple[float, float], ...]  # left and width of spans with findings
    onset: float | None
    alt_text: str


# An axis shows at least this range, so that it does not magnify deviations within the tolerance.
TOLERANCE = 0.01  # of a balance, relative; of a misallocation
_FROM_ZERO = ("misallocation", "lr", "tokens", "samples", "micro_batches", "collectives")
_PERCENTAGES = ("misallocation",)  # shares of 1
DECADES = 100  # the largest value divided by the smallest, from which an axis is logarithmic


def at_least(figure: str, low: float, high: float) -> tuple[float, float]:
    """The range of an axis of a figure: that of its values, or the least one."""
    if figure == "balance" and high - low < 2 * TOLERANCE * high:
        low, high = low * (1 - TOLERANCE), high * (1 + TOLERANCE)
    if figure == "misallocation":
        high = max(high, TOLERANCE)
    return (min(low, 0.0), high) if figure in _FROM_ZERO else (low, high)


def spans_decades(figure: str, low: float, high: float) -> bool:
    """Whether a linear axis would hide the small ones of positive values."""
    return figure not in _FROM_ZERO and low > 0 and high / low >= DECADES


@dataclass(frozen=True)
class Frame:
    """The title, scale, marked spans and onset of a chart; ``figure`` of its first curve."""

    title: str
    log: bool = False
    marked: Sequence[Span] = ()
    onset: int | None = None
    figure: str = ""


def plot(frame: Frame, steps: Sequence[int], curves: Sequence[Curve]) -> Plot | None:
    """A chart over steps; None if there is no finite value."""
    values = [v for c in curves for v in _all_values(c) if v is not None and _fits(v, frame.log)]
    if not values or not steps:
        return None
    low, high = _range(frame, min(values), max(values))
    log = frame.log or spans_decades(frame.figure, low, high)
    x = _scale(steps[0] - 0.5, steps[-1] + 0.5, LEFT, WIDTH - RIGHT)
    linear_y = _scale(_linear(low, log), _linear(high, log), HEIGHT - BOTTOM, TOP)

    def y(value: float) -> float:
        return linear_y(_linear(value, log))

    paths = [_curve_path(curve, [x(step) for step in steps], y, log) for curve in curves]
    first, last = steps[0], steps[-1]
    spans = [(max(a, first), min(b, last)) for a, b in frame.marked if a <= last and b >= first]
    onset = frame.onset if frame.onset is not None and first <= frame.onset <= last else None
    return Plot(
        title=frame.title,
        curves=tuple(path for path in paths if path.path),
        x_ticks=tuple(Tick(x(s), formatting.count(s)) for s in _step_ticks(first, last)),
        y_ticks=tuple(Tick(y(v), _tick_text(frame, v)) for v in _ticks(low, high, log)),
        marked=tuple((x(a - 0.5), round(max(x(b + 0.5) - x(a - 0.5), 1), 1)) for a, b in spans),
        onset=None if onset is None else x(onset),
        alt_text=f"{frame.title}, steps {first:,} to {last:,}: "
        f"{_text(frame, min(values))} to {_text(frame, max(values))}",
    )


def _text(frame: Frame, value: float) -> str:
    is_share = frame.figure in _PERCENTAGES
    return formatting.percent(value) if is_share else formatting.figure(value)


def _tick_text(frame: Frame, value: float) -> str:
    if frame.figure in _PERCENTAGES:
        return f"{formatting.figure(value * 100, 3)}%"
    return formatting.figure(value, 3)


def _all_values(curve: Curve) -> list[float | None]:
    return [*curve.values, *(curve.low or ()), *(curve.high or ())]


def _fits(value: float, log: bool) -> bool:
    """Whether a scale can hold a value: beyond ``LARGEST``, distances overflow."""
    if value <= 0 and log:
        return False
    return value == 0 or 1 / LARGEST <= abs(value) <= LARGEST


def _linear(value: float, log: bool) -> float:
    return math.log10(value) if log else value


def _range(frame: Frame, least: float, most: float) -> tuple[float, float]:
    """The ends of the vertical axis. One that begins at zero is not continued below it."""
    low, high = at_least(frame.figure, least, most)
    padded = _padded(low, high, frame.log or spans_decades(frame.figure, low, high))
    return (0.0 if low == 0.0 and frame.figure in _FROM_ZERO else padded[0]), padded[1]


def _padded(low: float, high: float, log: bool) -> tuple[float, float]:
    """The extremes with a margin; the range is never empty."""
    if log:
        return (low / 1.1, high * 1.1) if high > low * 1.01 else (low / 2, high * 2)
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    factor = (end - start) / ((high - low) or 1.0)
    return lambda value: round(start + (value - low) * factor, 1)


def _curve_path(curve: Curve, xs: list[float], y: Callable[[float], float], log: bool) -> CurvePath:
    def heights(values: Values) -> list[float | None]:
        return [y(v) if v is not None and _fits(v, log) else None for v in values]

    band = ""
    if curve.low is not None and curve.high is not None:
        edges = zip(xs, heights(curve.low), heights(curve.high), strict=True)
        band = "".join(
            f"M{x:g} {a:g}V{b:g}" for x, a, b in edges if a is not None and b is not None
        )
    return CurvePath(curve.label, curve.colour, _path(xs, heights(curve.values)), band, curve.dash)


def _path(xs: list[float], ys: list[float | None]) -> str:
    """Line segments between gaps; a point between two gaps is drawn as a dot."""
    parts, drawing = [], False
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if y is not None:
            isolated = not drawing and (index + 1 == len(ys) or ys[index + 1] is None)
            parts.append(f"{'L' if drawing else 'M'}{x:g} {y:g}" + ("h.1" if isolated else ""))
        drawing = y is not None
    return "".join(parts)


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if not log:
        return _round_ticks(low, high, 4)
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    every = max(1, -(-len(powers) // 5))
    if len(powers) >= 2:
        return [10.0**power for power in powers[::every]]
    return [v for v in _round_ticks(low, high, 4) if v > 0]


def _round_ticks(low: float, high: float, target: int) -> list[float]:
    rough = (high - low) / target
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * f for f in (1, 2, 5, 10) if size * f >= rough)
    first = math.ceil(low / step)
    return [round(n * step, 12) for n in range(first, math.floor(high / step) + 1)]


def _step_ticks(first: int, last: int) -> list[int]:
    if first == last:
        return [first]
    return sorted({int(v) for v in _round_ticks(first, last, 5) if v == int(v)} or {first, last})
