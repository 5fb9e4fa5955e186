"""Gradients, parameters and updates by layer, at a few steps: measured now, resolved later.

A step that is measured reads every parameter once, as the norm of the gradients reads every
gradient. How far a parameter moves is estimated from some of its coordinates, because a copy of all
of them would take as much memory as the model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.capture.layers.frozen_zeros import OpenFrozenZeros
from gradledger.capture.layers.modes import Modes
from gradledger.records import Layers

MOST_LAYERS = 512  # in a record; of more parameters, those of one module are one layer
MOST_MOVED = 1024  # parameters whose change is estimated
COORDINATES = 64  # of each of them: a standard error of 9%
FIRST_STEPS = 3
EVERY, EVERY_UNTIL = 5, 50
GROWTH = 1.1  # later: the next step is a tenth further on, 110 steps up to the millionth


def next_step(step: int) -> int:
    """The next step at which the layers are measured."""
    if step < FIRST_STEPS:
        return step + 1
    if step < EVERY_UNTIL:
        return step // EVERY * EVERY + EVERY
    return math.ceil(step * GROWTH)


@dataclass(slots=True)
class OpenLayers:
    """The parameters of an optimizer that require a gradient, at one step."""

    names: list[str]
    sizes: list[float]  # elements of each, on this rank
    gradients: list[tuple[list[int], Deferred]]  # which parameters, and the norms of each
    parameters: Deferred  # norms
    earlier: list[int]  # no gradient now, and the optimizer has state of an earlier one
    frozen: int
    moved: list[int]  # whose coordinates are read
    before: Deferred | None = None
    counts: list[int] | None = None  # coordinates of each
    after: Deferred | None = None
    slopes: Deferred | None = None  # gradients at the coordinates of those that are rounded
    rounded: list[int] = field(default_factory=list)  # these
    single: bool = False  # they are in float32
    untrained: Callable[[], set[int]] = set  # parameters that never had a gradient but 0
    observed: int = 0  # steps that this is known of
    frozen_zeros: OpenFrozenZeros | None = None  # beside those
    decay: list[float] = field(default_factory=list)  # of each; empty: none, or not known
    decoupled: bool = False
    modes: Modes | None = None  # of the last backward

    def deferred(self) -> list[Deferred]:
        """The values that are read later."""
        values = [self.parameters, *(norms for _, norms in self.gradients)]
        sampled = (self.before, self.after, self.slopes)
        if self.frozen_zeros is not None:
            values.append(self.frozen_zeros.any_value)
        return values + [each for each in sampled if each is not None]

    def resolve(self, grad_scale: float | None) -> Layers:
        """The wire record; ``grad_scale`` is what a fused optimizer divides the gradients by."""
        norms: list[float | None] = [None] * len(self.names)
        for indices, values in self.gradients:
            for index, norm in zip(indices, values.values(), strict=True):
                norms[index] = norm / (grad_scale or 1.0)
        moves = self._moves()
        changes = {i: sum((b - a) * (b - a) for b, a in m) / len(m) for i, m in moves.items()}
        layers = Layers(frozen=self.frozen, parameters=len(self.names), observed=self.observed)
        layers.decoupled = self.decoupled
        layers.rounded, layers.unmoved = self._unmoved(moves)
        layers.single = self.single and layers.rounded > 0
        if self.modes is not None:
            layers.training, layers.evaluating = self.modes
        weights = self.parameters.values()
        earlier, untrained = set(self.earlier), self.untrained()
        zeros = {} if self.frozen_zeros is None else self.frozen_zeros.resolve()
        for layer, members in enumerate(_grouped(self.names)):
            size = sum(self.sizes[i] for i in members)
            gradients = [n for i in members if (n := norms[i]) is not None]
            layers.names.append(_module([self.names[i] for i in members]))
            layers.sizes.append(size)
            layers.gradient.append(_rms(gradients, size) if gradients else None)
            layers.parameter.append(_rms([weights[i] for i in members], size))
            layers.update.append(_rms_of_changes(changes, self.sizes, members))
            if self.decay:  # where members differ, the smallest
                layers.decay.append(min(self.decay[i] for i in members))
            if not gradients and earlier.intersection(members):
                layers.earlier.append(layer)
            if untrained.issuperset(members):
                layers.untrained.append(layer)
                if zeros.keys() >= set(members):
                    layers.frozen_zeros[layers.names[-1]] = zeros[members[0]]
        return layers

    def _moves(self) -> dict[int, list[tuple[float, float]]]:
        """The coordinates before and after the step, by parameter."""
        if self.before is None or self.after is None or self.counts is None:
            return {}
        before, after = self.before.values(), self.after.values()
        if len(before) != len(after):
            return {}
        pairs = iter(zip(before, after, strict=True))
        moves = {
            i: list(itertools.islice(pairs, n))
            for i, n in zip(self.moved, self.counts, strict=True)
        }
        return {index: values for index, values in moves.items() if values}

    def _unmoved(self, moves: dict[int, list[tuple[float, float]]]) -> tuple[int, int]:
        """Coordinates that are rounded and have a gradient, and those that did not move."""
        pairs = [pair for index in self.rounded for pair in moves.get(index, ())]
        slopes = [] if self.slopes is None else self.slopes.values()
        if len(pairs) != len(slopes):
            return 0, 0
        moved = [b != a for (b, a), slope in zip(pairs, slopes, strict=True) if slope]
        return len(moved), moved.count(False)


def copy_moved(parameters: list[Any], moved: list[int]) -> tuple[Deferred | None, list[int]]:
    """Coordinates of some of the parameters, and how many of each."""
    return gradient_probe.copy_each([parameters[i] for i in moved], COORDINATES)


def spread(total: int) -> list[int]:
    """The parameters whose change is estimated."""
    count = min(total, MOST_MOVED)
    return [index * total // count for index in range(count)]


def _grouped(names: list[str]) -> list[list[int]]:
    """Parameters by layer: each alone, or those of the largest modules that are few enough."""
    depth = 0
    groups = {name: [index] for index, name in enumerate(names)}
    deepest = max((name.count(".") for name in names), default=0)
    while len(groups) > MOST_LAYERS and depth < deepest:
        depth += 1
        groups = {}
        for index, name in enumerate(names):
            groups.setdefault(_prefix(name, deepest + 1 - depth), []).append(index)
    if len(groups) <= MOST_LAYERS:
        return list(groups.values())
    size = math.ceil(len(names) / MOST_LAYERS)
    return [list(range(i, min(i + size, len(names)))) for i in range(0, len(names), size)]


def _prefix(name: str, parts: int) -> str:
    """The first parts of a name, and never its last one."""
    path = name.split(".")
    return ".".join(path[: min(parts, len(path) - 1)])


def _module(names: list[str]) -> str:
    """What the names of a layer begin with; the name itself of a single parameter."""
    if len(names) == 1:
        return names[0]
    pairs = zip(names[0].split("."), names[-1].split("."), strict=False)
    common = [one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return ".".join(common) or f"{names[0]} to {names[-1]}"


def _rms(norms: list[float], size: float) -> float:
    return rounded(math.sqrt(sum(n * n for n in norms) / size)) if size else 0.0


def _rms_of_changes(
    changes: dict[int, float], sizes: list[float], members: list[int]
) -> float | None:
    """The RMS over the members whose change was estimated."""
    measured = [i for i in members if i in changes]
    size = sum(sizes[i] for i in measured)
    if not size:
        return None
    return rounded(math.sqrt(sum(changes[i] * sizes[i] for i in measured) / size))


def rounded(value: float) -> float:
    """Three digits: a colour shows fewer."""
    return float(f"{value:.3g}")
