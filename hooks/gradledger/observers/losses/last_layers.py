"""Numbers the last layers below losses: which backwards of a window are of one task, and which not.

A loop may call backward for each of its tasks, and each task has another head. Micro-batches of
one batch share the head.
"""

from __future__ import annotations

import weakref
from typing import Any

from gradledger.observers.losses.found_losses import LossNode
from gradledger.observers.losses.loss_patterns import parameter_of
from gradledger.observers.losses.node_names import PROJECTIONS

DEPTH = 24  # nodes between a loss and the projection that computes its input
LOSSES = 256  # that are looked at, if all have the same last layer: looking takes microseconds
MAX_LAYERS = 64  # of a process; where parameters are made anew all the time, numbers mean nothing


class LastLayers:
    """The parameters of last layers, numbered in the order in which they are first seen."""

    def __init__(self) -> None:
        self._numbered: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._looked = 0

    def number(self, loss: LossNode) -> int | None:
        """The number of the layer whose output this loss is a function of; None if not found."""
        if self._looked >= LOSSES and len(self._numbered) == 1:
            return 1
        self._looked += 1
        parameter = _last_parameter(loss.smoothed or loss.node)
        if parameter is None:
            return None
        reference, number = self._numbered.get(id(parameter), (None, 0))
        if reference is not None and reference() is parameter:
            return number
        if len(self._numbered) == MAX_LAYERS:
            return None
        number = 1 + max((number for _, number in self._numbered.values()), default=0)
        self._numbered[id(parameter)] = weakref.ref(parameter), number
        return number


def _last_parameter(node: Any) -> Any:
    """Down the first inputs that have a graph, to the first projection."""
    for _ in range(DEPTH):
        if node.name() in PROJECTIONS:
            return parameter_of(node)
        node = next((below for below, _ in node.next_functions if below is not None), None)
        if node is None:
            return None
    return None
