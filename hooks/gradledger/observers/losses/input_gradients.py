"""Finds backwards that give a gradient to an input, as an attack of adversarial training does.

Its gradients in the parameters are a by-product, which the loop zeroes, or leaves alone after the
training. The graph below the root is searched for a leaf that is no parameter: in the first
backwards, in some after gradients were zeroed without a step, in some of a window that no step
seems to close, and for as long as such leaves are there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.nn import Parameter

from gradledger.capture.left_open import LEFT_OPEN
from gradledger.observers.losses.loss_patterns import product_with_tensor
from gradledger.observers.losses.node_names import PARAMETER

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows

FIRST_SEARCHES, SEARCHES_AFTER = 16, 8  # of backwards: at first, and after zeroed gradients
MOST_TIMES = 8  # that zeroed gradients start a search
MOST_NODES = 20_000


class InputGradients:
    """The search, for all backwards of a process."""

    def __init__(self, windows: OpenWindows) -> None:
        self._windows = windows
        self._left = FIRST_SEARCHES  # backwards of losses that are still searched
        self._left_passing = FIRST_SEARCHES  # and of those that only pass gradients on
        self._times = 0
        self._reached = False  # by the last loss that was searched

    def reach(self, graphs: list[Any], passing: bool = False) -> tuple[weakref.ref[Any], ...]:
        """The inputs that the backward of these graphs gives a gradient; none if not searched.

        ``passing``: it starts from gradients. After a loss that reached inputs, so may a product
        with cached gradients. Many such may follow each loss, as those of chunks.
        """
        passing = passing or (self._reached and any(map(product_with_tensor, graphs)))
        if self._times < MOST_TIMES and self._may_be_unused():
            self._times += 1
            self._left = max(self._left, SEARCHES_AFTER)
        if not (self._left_passing if passing else self._left):
            return ()
        self._left, self._left_passing = self._left - (not passing), self._left_passing - passing
        leaves = list(_leaves_without_module(graphs))
        held = {id(p) for window in self._windows for p in window.parameters()} if leaves else ()
        reached = tuple(weakref.ref(leaf) for leaf in leaves if id(leaf) not in held)
        self._reached = bool(reached) or (passing and self._reached)
        if reached:
            self._left, self._left_passing = FIRST_SEARCHES, FIRST_SEARCHES
        return reached

    def _may_be_unused(self) -> bool:
        """Whether gradients may have been zeroed without a step, or have waited long for one."""
        windows = self._windows.of_this_thread()
        return any(
            window.micro_batches
            and (window.fresh is not False or len(window.micro_batches) == LEFT_OPEN)
            for window in windows
        )


def _leaves_without_module(graphs: list[Any]) -> Iterator[Any]:
    """The leaves below these nodes that are no ``Parameter``."""
    stack, visited = list(graphs), set(graphs)
    while stack and len(visited) <= MOST_NODES:
        node = stack.pop()
        if node.name() == PARAMETER and not isinstance(node.variable, Parameter):
            yield node.variable
        for below, _ in node.next_functions:
            if below is not None and below not in visited:
                visited.add(below)
                stack.append(below)
