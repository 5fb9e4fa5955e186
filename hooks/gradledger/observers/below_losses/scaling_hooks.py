"""Whether hooks of the script divide the gradient between the losses and the parameters.

The weights are read at the losses. A hook of a tensor or of a node below them, such as
``logits.register_hook(lambda g: g / K)``, may divide the gradient after that, and PyTorch does not
show which hooks a node has. What leaves a node is therefore compared with what arrives at the next
one: both are one tensor unless a hook returns another. This is done at each node that the whole
gradient passes before it reaches a parameter, in the first micro-batches, and in all later ones if
it was divided there. Hooks of parameters are not looked at: one alone shows a learning rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
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
from gradledger.observers.losses.found_losses import LossNode, sequence_number
from gradledger.observers.losses.node_names import PARAMETER, PASSED_ON_IN_ORDER

FIRST_MICRO_BATCHES = 16
FEW_LOSSES = 4  # of one backward
MOST_NODES = 64  # that are visited
# PyTorch calls the hooks of a module after this node; output i is input i.
PASSED_ON_TO_HOOKS = PASSED_ON_IN_ORDER | {"BackwardHookFunctionBackward"}
VALUES = 256  # of a gradient: many may be zero at the targets of a cross entropy
FEWEST_VALUES = 4  # different ones: any two numbers have a common factor
COMPARED = 16  # micro-batches whose gradients a hook changed: one that clips has no constant factor
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
    """Compares the gradients below the losses of each backward."""

    def __init__(self) -> None:
        self._changed: deque[_Scaling] = deque(maxlen=COMPARED)

    def watch(
        self,
        roots: list[Any],
        losses: list[LossNode],
        terms: list[OpenTerm],
        number: int,
        guard_hook: Callable[..., Any],
    ) -> list[Callable[[], None]]:
        """Watch what is below all losses of a backward. Returns functions that remove the hooks."""
        last = self._changed[-1] if self._changed else None
        early = number <= FIRST_MICRO_BATCHES or (last is not None and last.divides is not False)
        if not early or not 0 < len(losses) <= FEW_LOSSES:
            return []
        steps = _passed_by_all(roots, losses)
        scaling = _Scaling(self._changed)
        for term in terms if steps else ():
            if term.passed_on is None:
                term.passed_on = scaling
        return [undo for step in steps for undo in _watch_step(step, scaling, guard_hook)]


class _Scaling:
    """What one micro-batch shows: gradients before and after hooks."""

    def __init__(self, changed: deque[_Scaling]) -> None:
        self._changed = changed  # the last ones of which a hook changed the gradient
        self._pairs: list[tuple[Deferred, Deferred, float]] = []
        self.divides: bool | None = None  # not known yet

    def add(self, before: Deferred, after: Deferred, tolerance: float) -> None:
        """A hook returned another tensor."""
        if not self._pairs:
            self._changed.append(self)
        self._pairs.append((before, after, tolerance))

    def reason(self) -> str | None:
        """That a hook divides it, if one does by a constant; None if not."""
        if not self._pairs:
            return None
        factor = self.factor()
        others = [each.factor() for each in tuple(self._changed) if each is not self]
        compared = [each for each in others if each is not None]
        tolerance = self._pairs[0][2]
        self.divides = factor is not None and all(
            abs(each - factor) <= tolerance * factor for each in compared
        )
        return SCALED if self.divides and compared else None

    def factor(self) -> float | None:
        """By what hooks multiply the gradient, if that is less than 1; None if not known."""
        for before, after, tolerance in self._pairs:
            if before.has_no_copy or after.has_no_copy:
                continue
            values = before.values()
            if len({value for value in values if value}) < FEWEST_VALUES:
                continue
            factor = common_factor(values, after.values(), tolerance)
            if isinstance(factor, float) and 0 < factor < 1 - tolerance:
                return factor
        return None

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""
        for before, after, _ in self._pairs:
            yield before
            yield after


def _watch_step(
    step: _Step, scaling: _Scaling, guard_hook: Callable[..., Any]
) -> list[Callable[[], None]]:
    left: list[tuple[object, Deferred]] = []

    def after(gradients: tuple[Any, ...], _: Any = None) -> None:
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
        arrived = read_coordinates(gradient, VALUES)
        if arrived is not None:
            scaling.add(values, arrived, UNIFORM_HALF if gradient.dtype in HALF else UNIFORM)

    passes_on = step.node.name() in PASSED_ON_TO_HOOKS  # what arrives there, but for its own hooks
    register = step.node.register_prehook if passes_on else step.node.register_hook
    return [
        register(guard_hook(after)).remove,
        step.below.register_prehook(guard_hook(before)).remove,
    ]


def _mark(gradient: torch.Tensor) -> object:
    """Another one if a hook returned another tensor, or wrote over this one."""
    return local_part(gradient).data_ptr(), version_of(gradient)


def _passed_by_all(roots: list[Any], losses: list[LossNode]) -> list[_Step]:
    """The edges below all losses by which the whole gradient passes, down to the first parameter.

    A node that is the only one left to visit is on every way from the roots to a parameter, and all
    nodes that use it are known. The last made is visited first: a node is made after its inputs.
    """
    users: dict[Any, list[_Step | None]] = {root: [None] for root in roots}
    order, left = count(), list[tuple[int, int, Any]]()
    for root in users:
        heappush(left, (-(sequence_number(root) or 0), next(order), root))
    above, steps = {loss.node for loss in losses}, list[_Step]()
    while left and len(users) <= MOST_NODES:
        node = heappop(left)[2]
        if not (left or above) and len(users[node]) == 1:
            steps += filter(None, users[node])
        above.discard(node)
        for entry, (below, output) in enumerate(node.next_functions):
            if below is None:
                continue
            if below.name() == PARAMETER:
                return steps
            if below not in users:
                heappush(left, (-(sequence_number(below) or 0), next(order), below))
            users.setdefault(below, []).append(_Step(node, entry, below, output))
    return steps
