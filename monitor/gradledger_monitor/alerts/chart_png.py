"""A small PNG chart of the figure that a finding is about, drawn without a browser.

It requires Pillow, of the extra ``alerts``; without Pillow, messages have no chart.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradledger_monitor.model.chart_metrics import metrics_of_rule

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 34, 26
INK, PALE, LINE, MARK = "#1f2430", "#8a90a0", "#2f6fde", "#d43f3a"
LOGARITHMIC_FROM = 1_000.0  # ratio of the largest value to the smallest

FALLBACK = "loss_reported"  # if no metric of the rule was measured

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class _Scale:
    """Converts values to pixels, along one axis."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def pixel(self, value: float) -> float:
        low, high, scaled = map(self._scaled, (self.low, self.high, value))
        share = (scaled - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value


def draw(rule: str, since: int, series: dict[str, list[Any]]) -> bytes | None:
    """The chart for a finding of a rule, with its first step marked; None without data.

    ``series`` are columns by name, as ``curves.curves`` returns them.
    """
    try:
        image = importlib.import_module("PIL.Image")
        image_draw = importlib.import_module("PIL.ImageDraw")
    except ModuleNotFoundError:
        return None
    figure, points = _figure(rule, series)
    if len(points) < 2:
        return None
    picture = image.new("RGB", (WIDTH, HEIGHT), "white")
    _draw_chart(image_draw.Draw(picture), figure, points, since)
    out = io.BytesIO()
    picture.quantize(16).save(out, "PNG", optimize=True)
    return out.getvalue()


def _figure(rule: str, series: dict[str, list[Any]]) -> tuple[str, Points]:
    for figure in (*metrics_of_rule(rule), FALLBACK):
        pairs = zip(series["step"], series[figure], strict=True)
        points = [(s, v) for s, v in pairs if v is not None and math.isfinite(v)]
        if len(points) > 1:
            return figure, points
    return "", []


def _draw_chart(canvas: Any, figure: str, points: Points, since: int) -> None:
    x, y = _scales(points)
    canvas.text((LEFT, 8), f"{figure.replace('_', ' ')} by step", fill=INK, font_size=14)
    for value in (y.low, y.high):
        height = y.pixel(value)
        canvas.line([(LEFT, height), (WIDTH - RIGHT, height)], fill="#e4e6ec")
        canvas.text((LEFT - 8, height), f"{value:.4g}", fill=PALE, anchor="rm", font_size=12)
    for step, anchor in ((x.low, "lt"), (x.high, "rt")):
        canvas.text((x.pixel(step), HEIGHT - 18), f"{step:,.0f}", PALE, anchor=anchor, font_size=12)
    canvas.line([(x.pixel(step), y.pixel(value)) for step, value in points], fill=LINE, width=2)
    if x.low <= since <= x.high:
        canvas.line([(x.pixel(since), TOP), (x.pixel(since), HEIGHT - BOTTOM)], fill=MARK, width=2)
        anchor, offset = ("rt", -6) if since > (x.low + x.high) / 2 else ("lt", 6)
        text = f"since step {since:,}"
        canvas.text((x.pixel(since) + offset, TOP), text, fill=MARK, anchor=anchor, font_size=12)


def _scales(points: Sequence[tuple[float, float]]) -> tuple[_Scale, _Scale]:
    steps, values = zip(*points, strict=True)
    low, high = min(values), max(values)
    logarithmic = low > 0 and high / low >= LOGARITHMIC_FROM
    x = _Scale(min(steps), max(steps), LEFT, WIDTH - RIGHT)
    return x, _Scale(low, high, HEIGHT - BOTTOM, TOP, logarithmic)
