"""The heat map of the layers of a run: layer by step, as SVG coordinates and as a table.

It needs no script: it appears at first paint, on paper and in a report that is sent by e-mail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.model.layers.combined import Layer

T = TypeVar("T")

MOST_COLUMNS = 60
MOST_ROWS = 128  # rows of a heat map; of more layers, evenly spread ones
COLOURS = 9  # classes of the colour scale
LEAST_DECADES = 1.0  # of the colour scale
READS_LAYERS = "norm.vanishing_by_depth"
FIGURES = {
    "gradient": "gradient RMS",
    "ratio": "update / parameter",
}


@dataclass(frozen=True)
class Cell:
    """A layer at a step: the class of its colour, from 0; -1 is zero, -2 is no value."""

    column: int
    colour: int
    text: str


@dataclass(frozen=True)
class Row:
    """A layer, with its figures at the first and at the last step."""

    name: str
    cells: tuple[Cell, ...]
    first: str
    last: str


@dataclass(frozen=True)
class LayerMap:
    """The heat map of one figure."""

    figure: str
    label: str
    steps: tuple[int, ...]
    rows: tuple[Row, ...]
    hidden: int  # layers without a row
    low: str  # ends of the colour scale, which all values are in
    high: str

    @property
    def alt_text(self) -> str:
        """The heat map in a sentence."""
        steps = f"steps {self.steps[0]:,} to {self.steps[-1]:,}"
        layers = formatting.plural(len(self.rows), "layer")
        return f"{self.label} of {layers}, {steps}, between {self.low} and {self.high}"


def why_empty(coverage: Mapping[str, str]) -> str:
    """Why a run has no heat map: what a rule that reads the layers reports; "" if not known."""
    status, _, reason = coverage.get(READS_LAYERS, "").partition(": ")
    return reason if status == "not_measured" else ""


def layer_maps(by_step: Sequence[tuple[int, Sequence[Layer]]]) -> list[LayerMap]:
    """The heat maps of a run: gradient, and update relative to the parameters."""
    chosen = _spread(by_step, MOST_COLUMNS)
    names = list(dict.fromkeys(layer.name for _, layers in chosen for layer in layers))
    shown = _spread(names, MOST_ROWS)
    columns = [(step, {layer.name: layer for layer in layers}) for step, layers in chosen]
    maps = (_layer_map(figure, columns, shown, len(names)) for figure in FIGURES)
    return [each for each in maps if each is not None]


def _spread(items: Sequence[T], most: int) -> list[T]:
    """At most ``most`` of them, evenly spread, with the first and the last one."""
    if len(items) <= most:
        return list(items)
    last = len(items) - 1
    return [items[index * last // (most - 1)] for index in range(most)]


def _layer_map(
    figure: str, columns: list[tuple[int, dict[str, Layer]]], names: list[str], total: int
) -> LayerMap | None:
    values = {name: [_value(figure, layers.get(name)) for _, layers in columns] for name in names}
    positive = [v for row in values.values() for v in row if v and math.isfinite(v)]
    if not positive:
        return None
    low, high = math.log10(min(positive)), math.log10(max(positive))
    if high - low < LEAST_DECADES:
        middle = (low + high) / 2
        low, high = middle - LEAST_DECADES / 2, middle + LEAST_DECADES / 2
    steps = tuple(step for step, _ in columns)
    rows = [
        Row(
            name,
            tuple(
                Cell(column, _colour(value, low, high), f"step {steps[column]:,}: {_text(value)}")
                for column, value in enumerate(row)
            ),
            _text(row[0]),
            _text(row[-1]),
        )
        for name, row in values.items()
    ]
    return LayerMap(
        figure,
        FIGURES[figure],
        steps,
        tuple(rows),
        total - len(names),
        formatting.figure(10**low),
        formatting.figure(10**high),
    )


def _value(figure: str, layer: Layer | None) -> float | None:
    if layer is None:
        return None
    value: float | None = getattr(layer, figure)
    return value


def _colour(value: float | None, low: float, high: float) -> int:
    if value is None:
        return -2
    if value == 0:
        return -1
    if not math.isfinite(value):
        return COLOURS - 1
    share = (math.log10(value) - low) / (high - low)
    return min(max(int(share * COLOURS), 0), COLOURS - 1)


def _text(value: float | None) -> str:
    return "none" if value is None else formatting.figure(value)
