"""Whether hooks of the script divide the gradient between a loss and the parameters nearest to it.

The weights are read at the loss. A hook of a tensor or of a node below it, such as
``logits.register_hook(lambda g: g / K)``, may divide the gradient after that, and PyTorch does not
show which hooks a node has. What leaves each node on the shortest way from a loss to a parameter is
therefore compared with what arrives at the next one. Both are one tensor unless a hook returns
another. Then a few values of both are compared. This is done in the first micro-batches, and in all
later ones if a hook returned another tensor there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.gradient_probe import (
    UNIFORM,
    UNIFORM_HALF,
    common_factor,
    read_coordinates,
)
from gradledger.capture.isolation import local_part, version_of
from gradledger.capture.open_terms import HALF, OpenTerm
from gradledger.observers.losses.found_losses import LossNode
from gradledger.observers.losses.node_names import PARAMETER, PASSED_ON_IN_ORDER

FIRST_MICRO_BATCHES = 16
FEW_LOSSES = 4  # of one backward, whose ways are watched
MOST_NODES = 64  # that are visited to find the way
MOST_EDGES = 16
# PyTorch calls the hooks of a module after this node; output i is input i.
PASSED_ON_TO_HOOKS = PASSED_ON_IN_ORDER | {"BackwardHookFunctionBackward"}
VALUES = 256  # of a gradient: many may be zero at the targets of a cross entropy
SCALED = (
    "a hook divides the gradient between the loss and the parameters, which the weights at the "
    "loss do not count: if it divides by K, divide the loss instead"
)


class _Step(NamedTuple):
    """An edge of the graph: a node, which of its inputs, the next node, which of its outputs."""

    node: Any
    entry: int
    below: Any
    output: int


class ScalingHooks:
    """Compares the gradients along the way below each loss."""

    def __init__(self) -> None:
        self._changed = False  # whether a hook returned another tensor

    def watch(
        self,
        losses: list[LossNode],
        terms: list[OpenTerm],
        number: int,
        guard_hook: Callable[..., Any],
    ) -> list[Callable[[], None]]:
        """Watch the way below each loss. Returns functions that remove the hooks."""
        early = number <= FIRST_MICRO_BATCHES or self._changed
        if not early or len(losses) > FEW_LOSSES:
            return []
        undo: list[Callable[[], None]] = []
        used: dict[Any, Counter[Any]] = {}
        ways = [_way(loss.node, used) for loss in losses]
        users = sum(used.values(), Counter[Any]())
        for way, term in zip(ways, terms, strict=True):
            if term.passed_on is None:
                scaling = term.passed_on = _Scaling()
                for step in way:
                    if users[step.below, step.output] == 1:
                        undo += self._watch_step(step, scaling, guard_hook)
        return undo

    def _watch_step(
        self, step: _Step, scaling: _Scaling, guard_hook: Callable[..., Any]
    ) -> list[Callable[[], None]]:
        left: list[tuple[object, Deferred]] = []

        def after(gradients: tuple[Any, ...], _: Any) -> None:
            gradient = gradients[step.entry]
            is_one = gradient is not None and not gradient.is_nested
            values = read_coordinates(gradient, VALUES) if is_one else None
            if values is not None:
                left.append((_mark(gradient), values))

        def before(gradients: tuple[Any, ...]) -> None:
            gradient = gradients[step.output]
            if gradient is None or not left or gradient.layout is not torch.strided:
                return
            mark, values = left.pop()
            if _mark(gradient) == mark:
                return
            self._changed = True
            arrived = read_coordinates(gradient, VALUES)
            if arrived is not None:
                half = gradient.dtype in HALF
                scaling.pairs.append((values, arrived, UNIFORM_HALF if half else UNIFORM))

        return [
            step.node.register_hook(guard_hook(after)).remove,
            step.below.register_prehook(guard_hook(before)).remove,
        ]


class _Scaling:
    """What one micro-batch shows of a loss: gradients before and after hooks."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Deferred, Deferred, float]] = []

    def reason(self) -> str | None:
        """That a hook divides it, if it does; None if not."""
        for before, after, tolerance in self.pairs:
            if before.has_no_copy or after.has_no_copy:
                continue
            factor = common_factor(before.values(), after.values(), tolerance)
            if isinstance(factor, float) and 0 < factor < 1 - tolerance:
                return SCALED
        return None

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""
        for before, after, _ in self.pairs:
            yield before
            yield after


def _mark(gradient: torch.Tensor) -> object:
    """Another one if a hook returned another tensor, or wrote over this one."""
    return local_part(gradient).data_ptr(), version_of(gradient)


def _way(start: Any, used: dict[Any, Counter[Any]]) -> list[_Step]:
    """The shortest way from a node to a parameter; empty if it is too long.

    ``used`` gets which outputs each visited node uses. What arrives at one that several nodes use
    is a sum.
    """
    above: dict[Any, _Step | None] = {start: None}
    nodes, end = [start], None
    for node in nodes:  # which grows
        if node.name() == PARAMETER:
            end = end or node
            continue
        used[node] = Counter(each for each in node.next_functions if each[0] is not None)
        for index, (below, output) in enumerate(node.next_functions):
            if below is not None and below not in above and len(nodes) < MOST_NODES:
                above[below] = _Step(node, index, below, output)
                nodes.append(below)
    steps: list[_Step] = []
    step = None if end is None else above[end]
    while step is not None:
        last = steps[-1] if steps else None
        if last is not None and _passes_on(step, last):
            steps[-1] = step._replace(below=last.below, output=last.output)
        else:
            steps.append(step)
        step = above[step.node]
    return steps if len(steps) <= MOST_EDGES else []


def _passes_on(above: _Step, below: _Step) -> bool:
    """Whether the node between two steps passes on what arrives, but for its own hooks."""
    name = below.node.name()
    return name in PASSED_ON_TO_HOOKS and above.output == below.entry
