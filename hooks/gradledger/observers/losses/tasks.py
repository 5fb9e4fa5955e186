"""Numbers the tasks of a loop that calls backward for each: which micro-batches are of one batch.

The losses of one batch are computed by the same operations from the output of the same layer. Two
tasks have different heads; a critic's losses of real and of fake data have different operations.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.nn import Parameter

from gradledger.observers.losses.found_losses import LossNode
from gradledger.observers.losses.loss_patterns import parameter_of
from gradledger.observers.losses.node_names import PARAMETER, PASSED_ON, PROJECTIONS, RESHAPES
from gradledger.observers.losses.saved_hooks import saved

DEPTH = 24  # nodes between a loss and the layer that computes its input
LOSSES = 256  # that are looked at, if all are of one task: looking takes microseconds
MAX_TASKS = 64  # of a process; where parameters are made anew all the time, numbers mean nothing


class Tasks:
    """The losses of a process by task, numbered in the order in which tasks are first seen."""

    def __init__(self) -> None:
        self._numbered: dict[tuple[object, ...], tuple[weakref.ref[Any], int]] = {}
        self._looked = self._count = 0  # losses, and tasks

    def number(self, loss: LossNode) -> int | None:
        """The number of the task of this loss; None if no layer was found below it."""
        if self._looked >= LOSSES and self._count == 1:
            return 1
        self._looked += 1
        layer, operations = _way_down(loss.smoothed or loss.node)
        if layer is None:
            return None
        key = (id(layer), *operations)
        reference, number = self._numbered.get(key, (None, 0))
        if reference is not None and reference() is layer:
            return number
        if self._count == MAX_TASKS:
            return None
        self._count += 1
        living = {k: task for k, task in self._numbered.items() if task[0]() is not None}
        self._numbered = {**living, key: (weakref.ref(layer), self._count)}
        return self._count


def _way_down(node: Any) -> tuple[Any, list[str]]:
    """The parameter of the layer below a loss, and the operations between, reshapes left out.

    So is what passes a tensor on, and a bias: the shape and the strides of a layer's input decide
    whether it is added separately. The way leads to the first input that has a graph.
    """
    operations: list[str] = []
    for _ in range(DEPTH):
        name = node.name()
        if name in PROJECTIONS:
            trained = parameter_of(node)
            return _frozen_weight_of(node) if trained is None else trained, operations
        if name not in RESHAPES and name != PASSED_ON and not _adds_a_bias(node):
            operations.append(name)
        node = next((below for below, _ in node.next_functions if below is not None), None)
        if node is None:
            break
    return None, operations


def _frozen_weight_of(projection: Any) -> Any:
    """The weight of a frozen layer, as a critic is while its generator learns; None if it has none.

    The graph has no parameter then. The gradient of the layer's input needs the weight.
    """
    for name in ("mat2", "weight"):
        weight = saved(projection, name)
        weight = weight if weight is None or weight._base is None else weight._base
        if isinstance(weight, Parameter):
            return weight
    return None


def _adds_a_bias(node: Any) -> bool:
    below = [each for each, _ in node.next_functions]
    return node.name() == "AddBackward0" and any(b and b.name() == PARAMETER for b in below)
