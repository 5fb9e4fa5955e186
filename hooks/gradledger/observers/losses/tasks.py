"""Numbers the tasks of a loop that calls backward for each: which micro-batches are of one batch.

The losses of one batch are computed by the same operations from the output of the same layer. Two
tasks have different heads; a critic's losses of real and of fake data have different operations.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch.nn import Parameter

from gradledger.capture.layers.module_names import ModuleNames
from gradledger.observers.losses.found_losses import LossNode
from gradledger.observers.losses.loss_patterns import parameter_of
from gradledger.observers.losses.node_names import (
    ADDITIONS,
    MODEL_NODES,
    PARAMETER,
    PASSED_ON,
    PROJECTIONS,
    RESHAPES,
    SOFTMAXES,
)
from gradledger.observers.losses.saved_hooks import saved

_ENDS = MODEL_NODES - SOFTMAXES
_NAMED_AS = {"EuclideanDistBackward0": "CdistBackward0"}  # which of the two depends on the rows
DEPTH = 24  # nodes between a loss and the layer that computes its input
LOSSES = 256  # that are looked at, if all are of one task: looking takes microseconds
FIRST_MICRO_BATCHES = 16  # of a task, in which the graph is followed to name modules
FOLLOWED_AGAIN = 256  # later, in one of as many
MOST_NAMED = 16  # losses in one backward: of more, texts state the kind and how many they are
MAX_TASKS = 64  # of a process; where parameters are made anew all the time, numbers mean nothing

Names = tuple[str | None, ...]


class Tasks:
    """The losses of a process by task, numbered in the order in which tasks are first seen."""

    def __init__(self) -> None:
        self._numbered: dict[tuple[object, ...], tuple[weakref.ref[Any], int]] = {}
        self._looked = self._count = 0  # losses, and tasks

    @property
    def several(self) -> bool:
        """Whether more than one task was seen."""
        return self._count > 1

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


class ModulesBelow:
    """The names of several losses: the modules from whose outputs they are computed.

    The graph is followed in the first micro-batches of a task, and in a few of the later ones. The
    names should be the same: the first loss has the same layer and operations, and the others have
    the same kinds. A loss has no name once they differ.
    """

    def __init__(self) -> None:
        self._modules = ModuleNames()
        self._names: dict[tuple[object, ...], tuple[int, Names]] = {}

    def names(self, losses: Sequence[LossNode], task: int | None) -> Names:
        """A name for each loss, or None, in a micro-batch of this task."""
        key = (task, *(loss.name for loss in losses))
        count, latest = self._names.get(key, (0, None))
        if latest is not None and count >= FIRST_MICRO_BATCHES and count % FOLLOWED_AGAIN:
            self._names[key] = (count + 1, latest)
            return latest
        if len(losses) > MOST_NAMED or len(self._names) > MAX_TASKS:
            return (None,) * len(losses)
        search = len(losses) > 1
        names = tuple(_module_below(loss, self._modules, search) for loss in losses)
        if latest is not None:
            names = tuple(a if a == b else None for a, b in zip(names, latest, strict=True))
        self._names[key] = (count + 1, names)
        return names


def _module_below(loss: LossNode, names: ModuleNames, search: bool) -> str | None:
    """The name of the module from whose output alone a loss is computed; None if there is none.

    Each node on the way down has one input that has a graph. So the loss is a function of the
    output, and of numbers and targets. The way ends at what only a model has, such as a norm.
    """
    if loss.penalty or loss.hidden or loss.compiled is not None:
        return None
    inside = loss if loss.elements is None else loss.elements.inside
    node = loss.node if inside is None else inside.smoothed or inside.node
    for _ in range(DEPTH):
        name = node.name()
        if name in PROJECTIONS:
            parameter = parameter_of(node)
            return None if parameter is None else names.of(parameter, search)
        inputs = [below for below, _ in node.next_functions if below is not None]
        if len(inputs) == 2 and name in ADDITIONS:  # with a bias
            inputs = [below for below in inputs if below.name() != PARAMETER]
        if len(inputs) != 1 or name in _ENDS:
            return None
        node = inputs[0]
    return None


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
            operations.append(_NAMED_AS.get(name, name))
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
