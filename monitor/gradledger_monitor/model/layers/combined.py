"""Gradients, parameters and updates by layer, of all ranks together (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gradledger_monitor.ingest.schema import Layers, Number
from gradledger_monitor.model.numbers import number

LayersByRank = Mapping[int, Layers]


@dataclass(frozen=True)
class Layer:
    """One layer at one step. RMS is the root of the mean square of its elements."""

    name: str
    size: float  # elements
    gradient: float | None  # RMS; None: it has no gradient
    parameter: float | None  # RMS
    update: float | None  # RMS of the change; None: not measured
    earlier: bool = False  # it has no gradient now, and had one before
    untrained: bool = False  # at every observed step it had no gradient, or one of exactly 0
    decay: float = 0.0  # factor of its weight decay: see ``schema.Layers``

    @property
    def ratio(self) -> float | None:
        """How far the step moves the layer, relative to its parameters."""
        if self.update is None or not self.parameter:
            return None
        return self.update / self.parameter


def combined(ranks: LayersByRank, sharded: bool) -> list[Layer]:
    """The layers of the whole model, in its order.

    Shards are summed: the square of an RMS times the number of elements is a sum of squares.
    Replicas are equal after the ranks were synchronised, so the first that has a layer counts.
    """
    parts: dict[str, list[Layer]] = {}
    for _, layers in sorted(ranks.items()):
        for layer in layers_of(layers):
            parts.setdefault(layer.name, []).append(layer)
    return [_sum(of_name) if sharded else _replica(of_name) for of_name in parts.values()]


def layers_of(layers: Layers) -> list[Layer]:
    """The layers of one rank; an entry that a list lacks was not measured."""
    earlier, untrained = set(layers.earlier), set(layers.untrained)
    return [
        Layer(
            name,
            _at(layers.sizes, index) or 0.0,
            _at(layers.gradient, index),
            _at(layers.parameter, index),
            _at(layers.update, index),
            index in earlier,
            index in untrained,
            _at(layers.decay, index) or 0.0,
        )
        for index, name in enumerate(layers.names)
    ]


def _at(values: list[float] | list[Number] | list[Number | None], index: int) -> float | None:
    return number(values[index]) if index < len(values) else None


def _replica(parts: list[Layer]) -> Layer:
    """One layer from its replicas. Without DDP, ranks may use different layers."""
    return replace(parts[0], untrained=all(part.untrained for part in parts))


def _sum(parts: list[Layer]) -> Layer:
    """One layer from its shards."""
    size = sum(part.size for part in parts)
    return Layer(
        parts[0].name,
        size,
        _rms((part.gradient, part.size) for part in parts),
        _rms((part.parameter, part.size) for part in parts),
        _rms((part.update, part.size) for part in parts),
        any(part.earlier for part in parts),
        all(part.untrained for part in parts),
        parts[0].decay,
    )


def _rms(parts: Iterable[tuple[float | None, float]]) -> float | None:
    """Of shards that were measured; None if none was."""
    measured = [(rms, size) for rms, size in parts if rms is not None]
    size = sum(size for _, size in measured)
    return math.sqrt(sum(rms * rms * n for rms, n in measured) / size) if size else None
