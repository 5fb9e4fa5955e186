"""A small chart of the figure that a finding is about, as a PNG, drawn without a browser.

Needs Pillow, of the extra ``alerts``; without it, messages go without a picture.
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
LOGARITHMIC_FROM = 1_000.0  # largest over smallest

FALLBACK = "loss_reported"  # if no metric of the rule was measured

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class _Scale:
    """From values to pixels, along one axis."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        low, high, here = map(self._felt, (self.low, self.high, value))
        share = (here - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def _felt(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value


def drawn(rule: str, since: int, series: dict[str, list[Any]]) -> bytes | None:
    """The chart for a rule's finding, with the step where it began; None where nothing is to show.

    ``series`` are columns by name, as ``reading.series`` gives them.
    """
    try:
        image = importlib.import_module("PIL.Image")
        draw = importlib.import_module("PIL.ImageDraw")
    except ModuleNotFoundError:
        return None
    figure, points = _figure(rule, series)
    if len(points) < 2:
        return None
    picture = image.new("RGB", (WIDTH, HEIGHT), "white")
    _draw(draw.Draw(picture), figure, points, since)
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


def _draw(canvas: Any, figure: str, points: Points, since: int) -> None:
    x, y = _scales(points)
    canvas.text((LEFT, 8), f"{figure.replace('_', ' ')} by step", fill=INK, font_size=14)
    for value in (y.low, y.high):
        at = y.at(value)
        canvas.line([(LEFT, at), (WIDTH - RIGHT, at)], fill="#e4e6ec")
        canvas.text((LEFT - 8, at), f"{value:.4g}", fill=PALE, anchor="rm", font_size=12)
    for step, anchor in ((x.low, "lt"), (x.high, "rt")):
        canvas.text((x.at(step), HEIGHT - 18), f"{step:,.0f}", PALE, anchor=anchor, font_size=12)
    canvas.line([(x.at(step), y.at(value)) for step, value in points], fill=LINE, width=2)
    if x.low <= since <= x.high:
        canvas.line([(x.at(since), TOP), (x.at(since), HEIGHT - BOTTOM)], fill=MARK, width=2)
        side, beside = ("rt", -6) if since > (x.low + x.high) / 2 else ("lt", 6)
        text = f"since step {since:,}"
        canvas.text((x.at(since) + beside, TOP), text, fill=MARK, anchor=side, font_size=12)


def _scales(points: Sequence[tuple[float, float]]) -> tuple[_Scale, _Scale]:
    steps, values = zip(*points, strict=True)
    low, high = min(values), max(values)
    wide = low > 0 and high / low >= LOGARITHMIC_FROM
    x = _Scale(min(steps), max(steps), LEFT, WIDTH - RIGHT)
    return x, _Scale(low, high, HEIGHT - BOTTOM, TOP, wide)
