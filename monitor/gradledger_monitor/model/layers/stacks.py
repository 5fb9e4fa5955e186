"""Layers of one kind that follow each other, found by their names (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from gradledger_monitor.model.layers.combined import Layer

SMALL = 0.1  # share of the elements of the largest stack below which a stack does not count

MONOTONE = 0.8  # Kendall's rank correlation of position and gradient
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a whole part of a name

Stack = Sequence[Layer]


def stacks(layers: Iterable[Layer], least: int) -> list[Stack]:
    """The weights ``layers.0.up.weight``, ``layers.1.up.weight``, ..., of ``least`` or more.

    Their names differ in one number, and they have one size, so that their RMS are comparable.
    Biases and stacks with few elements are left out.
    """
    numbered: dict[tuple[str, str, float], list[tuple[int, Layer]]] = {}
    for layer in layers:
        if layer.name.rpartition(".")[2] == "bias":
            continue
        for number in _NUMBER.finditer(layer.name):
            key = layer.name[: number.start()], layer.name[number.end() :], layer.size
            numbered.setdefault(key, []).append((int(number[0]), layer))
    long = [each for each in numbered.values() if len(each) >= least]
    elements = [sum(layer.size for _, layer in each) for each in long]
    limit = SMALL * max(elements, default=0.0)
    return [
        [layer for _, layer in sorted(each, key=lambda pair: pair[0])]
        for each, count in zip(long, elements, strict=True)
        if count >= limit
    ]


def fall(stack: Stack) -> float | None:
    """The gradient RMS of the first layer over that of the last one, if it falls towards it.

    None if it does not, or if a layer has no gradient or none that is finite. Layers of 0 may
    come first: what is smaller than any number.
    """
    gradients = [layer.gradient for layer in stack]
    values = [g for g in gradients if g is not None]
    if len(values) < len(gradients) or not all(map(math.isfinite, values)):
        return None
    positive = [value for value in values if value > 0]
    if positive != values[-len(positive) :] or _agreement(positive) < MONOTONE:
        return None
    return values[0] / values[-1]


def _agreement(values: Sequence[float]) -> float:
    """Kendall's tau of the values and their positions; 0 of fewer than four."""
    count = len(values)
    if count < 4:
        return 0.0
    rising = falling = 0
    for index, later in enumerate(values):
        rising += sum(1 for earlier in values[:index] if earlier < later)
        falling += sum(1 for earlier in values[:index] if earlier > later)
    return 2 * (rising - falling) / (count * (count - 1))
