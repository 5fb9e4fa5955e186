"""What the walk of a graph finds: loss nodes, and the operations above them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_real_number, number_at_once
from gradledger.capture.open_terms import Constant
from gradledger.observers.losses.saved_hooks import has_unpack_hook
from gradledger.observers.losses_compiled.live import CompiledLoss

MOST_DIVISORS = 8  # of one loss in a record


class GraphPath(NamedTuple):
    """The operations between the root and a node.

    ``divisors`` has a number for each division but those by 1, nearest to the root first: the
    constant, or 0 if it is none. ``by_one`` states whether one is by 1: the steps that Accelerate
    knows of, or the tokens of a sum. ``factors`` are the constants that multiply, in the same
    order. Constants on a device are read later.
    ``nonlinear`` states whether one is a non-linear function of a scalar.
    ``function`` is the outermost of these, a function of the whole micro-batch: below it, constants
    are part of the function. ``learned`` are the factors that the model learns, as of tasks.
    """

    divisors: tuple[Constant, ...] = ()
    by_one: bool = False
    factors: tuple[Constant, ...] = ()
    nonlinear: bool = False
    function: Any = None
    learned: tuple[Constant, ...] = ()

    def through(self, node: Any, name: str) -> GraphPath:
        """The path continued through ``node``."""
        if self.function is not None:
            return self
        if name.startswith("DivBackward"):
            divisor = constant_of(node) if _divides(node) else 0.0
            if divisor == 1.0:
                return self._replace(by_one=True)
            return self.divided_by(divisor or 0.0)
        if name.startswith("MulBackward"):
            factor = constant_of(node)
            if factor is not None:
                return self._replace(factors=(*self.factors, factor))
        return self

    def at_once(self) -> GraphPath:
        """The path without the constants that are read later, to be compared with others."""

        def without_late(constants: tuple[Constant, ...]) -> tuple[Constant, ...]:
            return tuple(0.0 if isinstance(each, Deferred) else each for each in constants)

        return self._replace(
            divisors=without_late(self.divisors),
            factors=without_late(self.factors),
            learned=without_late(self.learned),
        )

    def divided_by(self, divisor: Constant) -> GraphPath:
        """The path continued through a division; of very many, the last ones are unknown."""
        first = self.divisors[: MOST_DIVISORS - 1]
        return self._replace(divisors=(*first, divisor if first == self.divisors else 0.0))


DIRECT = GraphPath()
UNKNOWN = (-1,)


class Edge(NamedTuple):
    """One output of a node, as the node above it refers to it."""

    node: Any
    output: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The output's shape."""
        return shape_of(self.node, self.output)


@dataclass(slots=True)
class Rows:
    """The elements are entries of a (log-)``softmax``, or a function of these: a token is one row.

    ``product`` is the lowest product above it, with the probabilities of the targets; None if
    there is none. ``even``: apart from it, only sums and numbers are below the outermost reduction.
    ``sums``: they are entries of the softmax itself, so that a row weighs as they do together.
    """

    softmax: Any
    dim: int  # of the classes
    product: Any
    even: bool
    sums: bool


@dataclass(slots=True)
class Elements:
    """The elements of a hand-written loss: the outputs of a node that is not linear.

    ``uniform``: all have the weight that the outermost reduction gives them.
    """

    shape: tuple[int, ...]
    uniform: bool
    inside: LossNode | None = None  # the loss that they are a function of
    custom: str | None = None  # the custom function that they are a function of
    rows: Rows | None = None


@dataclass(slots=True)
class LossNode:
    """A loss node, and the path from the root to it.

    ``node`` is the loss itself, or the node whose outputs are ``elements``. ``reduction`` is the
    outermost reduction, if the loss itself is not; ``link`` is the lowest node between the two that
    is linear, and the index of the input that leads to the loss.
    """

    node: Any
    name: str
    path: GraphPath
    smoothed: Any = None  # the cross entropy inside, if the node adds label smoothing to it
    reduction: Any = None
    link: tuple[Any, int] | None = None
    elements: Elements | None = None
    penalty: bool = False  # a function of parameters alone
    # other penalties, which have the same weight
    alike: list[Any] = field(default_factory=list)
    hidden: bool = False  # a function that reduces by itself, and hides its graph
    compiled: CompiledLoss | None = None  # of a compiled graph with the loss inside
    smoothed_size: int | None = None  # of a smoothing by hand: the positions that it counts


def shape_of(node: Any, output: int = 0) -> tuple[int, ...]:
    """The shape of one output of a node; ``UNKNOWN`` of a nested tensor, which has none."""
    try:
        return tuple(map(int, node._input_metadata[output].shape))
    except (RuntimeError, AttributeError, TypeError):
        return UNKNOWN


def sequence_number(node: Any) -> int | None:
    """The number that PyTorch gives a node when it is made; no other node of a thread has it."""
    number = getattr(node, "_sequence_nr", None)
    return None if number is None else int(number())


def output_count(node: Any) -> int | None:
    """How many outputs a node has; None if this PyTorch does not show that."""
    outputs = getattr(node, "_input_metadata", None)
    return None if outputs is None else len(outputs)


def element_count(edge: Edge) -> int:
    """The number of elements of an output."""
    return math.prod(edge.shape)


def graph_inputs(node: Any) -> list[tuple[int, Edge]]:
    """The inputs of a node that are in the graph, with their indices."""
    return [
        (index, Edge(below, output))
        for index, (below, output) in enumerate(node.next_functions)
        if below is not None
    ]


def signed(saved: Any) -> list[int]:
    """Saved numbers; PyTorch returns negative ones as huge unsigned ones."""
    return [int(n) - 2**64 if int(n) >= 2**63 else int(n) for n in saved]


def is_number(node: Any) -> bool:
    """Whether the other factor of a product is one number, not one for each element."""
    other = _other(node)
    return isinstance(other, (int, float)) or (other is not None and other.dim() == 0)


def _divides(node: Any) -> bool:
    """Whether the graph is above the line of a quotient, and not only below it."""
    return node.next_functions[0][0] is not None


def constant_of(node: Any) -> Constant | None:
    """The constant of a product or quotient; None if there is none."""
    other = _other(node)
    if getattr(other, "requires_grad", False):
        return None
    number = number_at_once(other)  # a number is saved as a 0-dim CPU tensor in a graph
    if number is not None or not is_real_number(other):
        return number
    return Deferred(other, volatile=True)


def saved_factor(node: Any, name: str, inverse: bool) -> Constant | None:
    """The number saved as ``self`` or ``other``; None if there is none, or a hook holds it."""
    raw = getattr(node, "_raw_saved_" + name, None)
    if raw is None or has_unpack_hook(node, raw):
        return None
    value = getattr(node, "_saved_" + name, None)
    if not isinstance(value, torch.Tensor) or not is_real_number(value):
        return None
    factor = value.detach().float().reciprocal() if inverse else value.detach()
    number = number_at_once(factor)
    return Deferred(factor, volatile=True) if number is None else number


def _other(node: Any) -> Any:
    """The factor or divisor outside the graph, as it was saved; None if it cannot be read."""
    name = "self" if node.next_functions[0][0] is None else "other"
    raw = getattr(node, "_raw_saved_" + name, None)
    if raw is not None and has_unpack_hook(node, raw):
        return None
    return getattr(node, "_saved_" + name, None)
