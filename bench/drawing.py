"""Draws curves as SVG without scripts: logarithmic axes, linear growth as a dashed line.

The colours are visible on light and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 230, 170  # of one panel
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 28, 34
INK, LINE, FAINT = "#808080", "#5c6bc0", "#b0b0b0"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """One panel: y in microseconds against x, both positive."""

    title: str
    points: Points

    @property
    def exponent(self) -> float:
        """The slope of the line through the logarithms, by least squares: 1 is linear."""
        x, y = ([math.log(point[axis]) for point in self.points] for axis in (0, 1))
        middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
        spread = sum((a - middle_x) ** 2 for a in x)
        return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / spread


def draw(curves: Sequence[Curve]) -> str:
    """All of them side by side, as SVG."""
    width = WIDTH * len(curves)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
    head += f'font-family="sans-serif" font-size="10" fill="{INK}">'
    panels = (
        f'<g transform="translate({WIDTH * number} 0)">{_panel(curve)}</g>'
        for number, curve in enumerate(curves)
    )
    return "\n".join([head, *panels, "</svg>", ""])


def _panel(curve: Curve) -> str:
    first, last = curve.points[0], curve.points[-1]
    top = max(y for _, y in curve.points)
    linear = (last[0], first[1] * last[0] / first[0])
    low, high = min(y for _, y in curve.points) / 2, max(top, min(linear[1], top * 10)) * 1.2

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / first[0]) / math.log(last[0] / first[0])
        up = math.log(y / low) / math.log(high / low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (
            HEIGHT - TOP - BOTTOM
        )

    within = min(linear[1], high)
    until = (first[0] * within / first[1], within)
    parts = [
        f'<text x="{LEFT}" y="14" font-weight="bold">{escape(curve.title)}</text>',
        _line([to_pixels(*first), to_pixels(*until)], FAINT, ' stroke-dasharray="4 3"'),
        _line([to_pixels(*point) for point in curve.points], LINE, ' stroke-width="2"'),
    ]
    parts += [_dot(*to_pixels(*point)) for point in curve.points]
    parts.append(_label(first[0], (LEFT, HEIGHT - 16), "middle"))
    parts.append(_label(last[0], (WIDTH - RIGHT, HEIGHT - 16), "end"))
    ends = [(y, to_pixels(first[0], y)[1] + 3) for y in (first[1], last[1])]
    apart = abs(ends[0][1] - ends[1][1]) > 11  # or one would be written over the other
    parts += [_label(y, (LEFT - 8, at), "end") for y, at in (ends if apart else ends[:1])]
    return "".join(parts)


def _line(points: Points, colour: str, more: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{colour}"{more} points="{path}"/>'


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{LINE}"/>'


def _label(value: float, at: tuple[float, float], anchor: str) -> str:
    return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}">{value:,.0f}</text>'
