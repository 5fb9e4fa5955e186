"""Charts that need no script: curves with axes, as the numbers of an SVG.

For what is read away from the service: a report that somebody attaches to an incident.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradledger_web import formatting

WIDTH, HEIGHT = 460.0, 170.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 8.0, 8.0, 20.0
FARTHEST = 1e300  # from zero, and from infinity, that a scale reaches

Values = Sequence[float | None]
Span = tuple[int, int]


@dataclass(frozen=True)
class Curve:
    """One figure: its values by step, and where points stand for several, the extremes."""

    label: str
    colour: str
    values: Values
    low: Values | None = None
    high: Values | None = None
    dash: str = "solid"


@dataclass(frozen=True)
class Tick:
    """A place on an axis and what is written there."""

    at: float
    text: str


@dataclass(frozen=True)
class Drawn:
    """One curve as paths; ``band`` is the space between the extremes."""

    label: str
    colour: str
    path: str
    band: str
    dash: str


@dataclass(frozen=True)
class Plot:
    """A chart, ready for a template."""

    title: str
    curves: tuple[Drawn, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marked: tuple[tuple[float, float], ...]  # left and width of spans with findings
    onset: float | None
    told: str


@dataclass(frozen=True)
class Frame:
    """What a chart shows besides its curves."""

    title: str
    log: bool = False
    marked: Sequence[Span] = ()
    onset: int | None = None


def plot(frame: Frame, steps: Sequence[int], curves: Sequence[Curve]) -> Plot | None:
    """A chart over steps; None without one finite value."""
    known = [v for c in curves for v in _all(c) if v is not None and _drawable(v, frame.log)]
    if not known or not steps:
        return None
    low, high = _room(min(known), max(known), frame.log)
    x = _scale(steps[0] - 0.5, steps[-1] + 0.5, LEFT, WIDTH - RIGHT)
    y = _scale(_unit(low, frame.log), _unit(high, frame.log), HEIGHT - BOTTOM, TOP)

    def up(value: float) -> float:
        return y(_unit(value, frame.log))

    drawn = tuple(_drawn(curve, [x(step) for step in steps], up, frame.log) for curve in curves)
    first, last = steps[0], steps[-1]
    inside = [(max(a, first), min(b, last)) for a, b in frame.marked if a <= last and b >= first]
    onset = frame.onset if frame.onset is not None and first <= frame.onset <= last else None
    return Plot(
        title=frame.title,
        curves=tuple(one for one in drawn if one.path),
        x_ticks=tuple(Tick(x(s), formatting.count(s)) for s in _whole_ticks(first, last)),
        y_ticks=tuple(Tick(up(v), formatting.figure(v, 3)) for v in _ticks(low, high, frame.log)),
        marked=tuple((x(a - 0.5), round(max(x(b + 0.5) - x(a - 0.5), 1), 1)) for a, b in inside),
        onset=None if onset is None else x(onset),
        told=f"{frame.title}, steps {first:,} to {last:,}: "
        f"{formatting.figure(min(known))} to {formatting.figure(max(known))}",
    )


def _all(curve: Curve) -> list[float | None]:
    return [*curve.values, *(curve.low or ()), *(curve.high or ())]


def _drawable(value: float, log: bool) -> bool:
    """Whether a scale can hold it: beyond ``FARTHEST``, a distance is no longer a float."""
    if value <= 0 and log:
        return False
    return value == 0 or 1 / FARTHEST <= abs(value) <= FARTHEST


def _unit(value: float, log: bool) -> float:
    return math.log10(value) if log else value


def _room(low: float, high: float, log: bool) -> tuple[float, float]:
    """A little more than the extremes, and never nothing."""
    if log:
        return (low / 1.1, high * 1.1) if high > low * 1.01 else (low / 2, high * 2)
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    per = (end - start) / ((high - low) or 1.0)
    return lambda value: round(start + (value - low) * per, 1)


def _drawn(curve: Curve, xs: list[float], up: Callable[[float], float], log: bool) -> Drawn:
    def heights(values: Values) -> list[float | None]:
        return [up(v) if v is not None and _drawable(v, log) else None for v in values]

    band = ""
    if curve.low is not None and curve.high is not None:
        edges = zip(xs, heights(curve.low), heights(curve.high), strict=True)
        band = "".join(
            f"M{x:g} {a:g}V{b:g}" for x, a, b in edges if a is not None and b is not None
        )
    return Drawn(curve.label, curve.colour, _path(xs, heights(curve.values)), band, curve.dash)


def _path(xs: list[float], ys: list[float | None]) -> str:
    parts, drawing = [], False
    for at, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if y is not None:
            alone = not drawing and (at + 1 == len(ys) or ys[at + 1] is None)
            parts.append(f"{'L' if drawing else 'M'}{x:g} {y:g}" + ("h.1" if alone else ""))
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


def _round_ticks(low: float, high: float, about: int) -> list[float]:
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * f for f in (1, 2, 5, 10) if size * f >= rough)
    first = math.ceil(low / step)
    return [round(n * step, 12) for n in range(first, math.floor(high / step) + 1)]


def _whole_ticks(first: int, last: int) -> list[int]:
    if first == last:
        return [first]
    return sorted({int(v) for v in _round_ticks(first, last, 5) if v == int(v)} or {first, last})
