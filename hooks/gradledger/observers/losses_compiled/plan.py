"""Reads from a Dynamo graph which losses an output is a linear function of, and how.

The graph is read before it is lowered, and is not changed. What is copied out of it, a ``Plan``,
consists of the few functions that must be called again on the live inputs: those between the inputs
and the targets of a loss, its ignored class, its divisors and its masks. Nothing that depends on a
parameter, draws random numbers, communicates or writes to memory is ever called again. A graph that
looks different has no plan, and its loss is not measured.

Shapes may be symbolic. They are compared as text, because comparing the symbols adds guards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch.fx import Graph, Node

from gradledger.observers.losses_compiled.functions import (
    DIVIDE,
    IN_PLACE,
    ITEM,
    LINEAR,
    LINEAR_IN_ALL,
    LOSSES,
    MAY_ALIAS,
    MULTIPLY,
    REDUCTIONS,
    function_of,
    may_mutate,
    name_of,
)
from gradledger.records import Reduction

MAX_NODES = 512  # that one output needs
_HEAD_DEPTH = 24  # nodes between a cross entropy and the projection that computes its logits
_PROJECTIONS = ("linear", "matmul", "mm")


class Slot(NamedTuple):
    """The place of a value in a call: an argument of an operation that an earlier one computes."""

    number: int


class Operation(NamedTuple):
    """A function to be called again; ``slot`` gets its result."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    slot: int


@dataclass(frozen=True)
class PlannedLoss:
    """A loss of the graph. A value that is no constant is a ``Slot``."""

    kind: str
    reduction: Reduction
    slot: int
    target: Any  # None: only its shape counts, which is ``shape``
    shape: tuple[int, ...] | None
    dtype: torch.dtype
    has_classes: bool
    ignored: Any = None
    class_weights: Any = None
    head: Any = None  # equal for losses of one projection
    divided: bool = False  # a division is between the output and the loss
    outermost: int | None = None  # the slot of the outermost reduction, if that is not the loss
    outermost_name: Reduction = "sum"
    classes: int | None = None  # their number, if the graph is compiled for it
    trains: bool = True  # False: it is detached, or computed under ``no_grad``


@dataclass(frozen=True)
class Plan:
    """One output of a compiled graph, as a function of its losses."""

    output: int
    inputs: tuple[tuple[int, int], ...]  # the arguments that are needed, and their slots
    before: tuple[Operation, ...]  # of inputs alone
    tail: tuple[Operation, ...]  # of losses
    slot: int  # of the output
    losses: tuple[PlannedLoss, ...]


@dataclass(frozen=True)
class Passage:
    """One output of a graph without losses: a linear function of numbers that enter it, such as a
    loss that an earlier graph computed."""

    output: int
    numbers: tuple[int, ...]  # the positions of the arguments
    divided: bool
    inputs: tuple[tuple[int, int], ...] = ()  # as of a ``Plan``: nothing is computed again


class _UnknownGraphError(Exception):
    """The graph has no plan."""


def plans(graph: Graph) -> list[Plan | Passage]:
    """The outputs of a graph that are single numbers, and that are known functions of losses, or of
    numbers that enter a graph without losses."""
    losses = {node for node in graph.nodes if node.op == "call_function" and node.target in LOSSES}
    ends = losses or {node for node in graph.nodes if _may_be_a_loss(node)}
    if not ends:
        return []
    dependent = _descendants(list(ends))
    outputs = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    readable: list[Plan | Passage] = []
    for index, node in enumerate(outputs if isinstance(outputs, (tuple, list)) else ()):
        if isinstance(node, Node) and node in dependent and _is_number(node):
            try:
                planner = _Planner(graph, dependent, ends)
                readable.append(
                    planner.plan(index, node) if losses else planner.passage(index, node)
                )
            except _UnknownGraphError:
                continue
    return readable


def _may_be_a_loss(node: Node) -> bool:
    """Whether a node is an argument with one number that has a gradient."""
    return node.op == "placeholder" and _is_number(node) and _example(node).requires_grad


class _Planner:
    """Plans one output."""

    def __init__(self, graph: Graph, dependent: set[Node], ends: set[Node]) -> None:
        placeholders = (node for node in graph.nodes if node.op == "placeholder")
        self._positions = {node: position for position, node in enumerate(placeholders)}
        self._dependent, self._ends = dependent, ends
        self._slots: dict[Node, int] = {}
        self._inputs: list[tuple[int, int]] = []
        self._before: list[Operation] = []
        self._tail: list[Operation] = []
        self._losses: list[PlannedLoss] = []

    def plan(self, index: int, output: Node) -> Plan:
        """The plan; raises if a node on the way is not known."""
        above = _Above(output, self._dependent, self._ends)
        for node in above.order:
            if node in self._ends:
                self._losses.append(self._loss(node, above))
            else:
                self._add_to_tail(node)
        _require(not any(map(_is_written_to, self._slots)))
        return Plan(
            index,
            tuple(self._inputs),
            tuple(self._before),
            tuple(self._tail),
            self._slots[output],
            tuple(self._losses),
        )

    def passage(self, index: int, output: Node) -> Passage:
        """The output of a graph without losses; raises if a node on the way is not known."""
        above = _Above(output, self._dependent, self._ends)
        numbers = [node for node in above.order if node in self._ends]
        for node in above.order:
            if node in self._ends:
                self._slot(node)
            else:
                self._add_to_tail(node)
        _require(not any(map(_is_written_to, self._slots)))
        divided = any(above.description(node)[0] for node in numbers)
        return Passage(index, tuple(self._positions[node] for node in numbers), divided)

    def _add_to_tail(self, node: Node) -> None:
        self._check_linear(node)
        self._tail.append(self._operation(node, self._value))

    def _loss(self, node: Node, above: _Above) -> PlannedLoss:
        function = LOSSES[node.target]
        signature = inspect.signature(cast("Callable[..., Any]", node.target))
        bound = signature.bind(*node.args, **node.kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if arguments.get("size_average") is not None or arguments.get("reduce") is not None:
            raise _UnknownGraphError
        source, target = arguments["input"], arguments["target"]
        if {source, target} & self._dependent:
            raise _UnknownGraphError  # a function of another loss
        shape = _shape(_example(target))
        if function.has_classes:
            _require(not _example(target).is_floating_point())
            wanted = self._value(target)
        else:
            _require(list(map(str, _example(source).shape)) == list(map(str, shape)))
            static = all(type(size) is int for size in shape)
            wanted = None if static and target.op != "placeholder" else self._value(target)
        divided, outermost = above.description(node)
        return PlannedLoss(
            function.kind,
            arguments["reduction"],
            self._slot(node),
            wanted,
            None if wanted is not None else shape,
            _example(node).dtype,
            function.has_classes,
            self._value(arguments.get("ignore_index")),
            self._value(arguments.get("weight")) if function.has_classes else None,
            _head(source) if function.has_classes else None,
            divided,
            None if outermost is None else self._slot(outermost),
            "mean" if outermost is not None and name_of(outermost) == "mean" else "sum",
            _classes(source) if function.has_classes else None,
            bool(_example(node).requires_grad),
        )

    def _check_linear(self, node: Node) -> None:
        name, count = name_of(node), 0
        for argument in node.all_input_nodes:
            count += argument in self._dependent
        first = bool(node.args) and node.args[0] in self._dependent
        linear = (
            name in LINEAR_IN_ALL
            or (count == 1 and (name == MULTIPLY or (name in LINEAR and name != "where")))
            or (count == 1 and name == DIVIDE and first)
            or (name == "where" and len(node.args) == 3 and not first)
        )
        _require(linear and node.kwargs.get("rounding_mode") is None)

    def _value(self, argument: Any) -> Any:
        """The argument with slots for nodes, which are planned, too."""
        if isinstance(argument, Node):
            if argument not in self._slots:
                self._add(argument)
            return Slot(self._slots[argument])
        if isinstance(argument, (tuple, list)):
            return type(argument)(map(self._value, argument))
        if isinstance(argument, slice):
            return slice(*map(self._value, (argument.start, argument.stop, argument.step)))
        return argument

    def _add(self, node: Node) -> None:
        _require(node not in self._dependent)
        example = _example(node)
        _require(not (isinstance(example, torch.Tensor) and example.requires_grad))
        if node.op == "placeholder":
            self._inputs.append((self._positions[node], self._slot(node)))
            return
        name = name_of(node)
        _require(name is not None and node.target not in IN_PLACE)
        # to read a number from a device would wait for it
        _require(name != ITEM or _example(node.args[0]).device.type == "cpu")
        self._before.append(self._operation(node, self._value))

    def _operation(self, node: Node, value: Callable[[Any], Any]) -> Operation:
        args = tuple(map(value, node.args))
        kwargs = {name: value(argument) for name, argument in node.kwargs.items()}
        return Operation(function_of(node), args, kwargs, self._slot(node))

    def _slot(self, node: Node) -> int:
        """The slot of a node, which may be planned later."""
        _require(len(self._slots) < MAX_NODES)
        return self._slots.setdefault(node, len(self._slots))


class _Above:
    """The nodes between an output and its losses."""

    def __init__(self, output: Node, dependent: set[Node], ends: set[Node]) -> None:
        self._output, self._dependent, self._ends = output, dependent, ends
        self.order: list[Node] = []  # losses first, the output last
        self._visit(output, set())

    def _visit(self, output: Node, visited: set[Node]) -> None:
        stack = [(output, False)]
        while stack:
            node, done = stack.pop()
            if done:
                self.order.append(node)
            elif node not in visited:
                visited.add(node)
                _require(len(visited) < MAX_NODES)
                stack.append((node, True))
                stack += [(below, False) for below in self._inputs(node)]

    def _inputs(self, node: Node) -> Iterator[Node]:
        if node not in self._ends:
            yield from (each for each in node.all_input_nodes if each in self._dependent)

    def description(self, loss: Node) -> tuple[bool, Node | None]:
        """Whether a division is above a loss, and its outermost reduction, if one is known."""
        divided, outermost, node = False, None, loss
        inside = set(self.order)
        while node is not self._output:
            users = [user for user in node.users if user in inside]
            if len(users) != 1:
                return True, None
            (node,) = users
            divided = divided or name_of(node) == DIVIDE
            if name_of(node) in REDUCTIONS and _is_number(node):
                outermost = node
        return divided, outermost


def _require(condition: bool) -> None:
    if not condition:
        raise _UnknownGraphError


def _example(node: Any) -> Any:
    """The value without numbers with which Dynamo traced a node."""
    _require(isinstance(node, Node) and "example_value" in node.meta)
    return node.meta["example_value"]


def _shape(example: Any) -> tuple[Any, ...]:
    _require(isinstance(example, torch.Tensor))
    return tuple(example.shape)


def _classes(logits: Any) -> int | None:
    sizes = _shape(_example(logits))[:2]
    return sizes[-1] if sizes and type(sizes[-1]) is int else None


def _is_number(node: Node) -> bool:
    example = node.meta.get("example_value")
    return isinstance(example, torch.Tensor) and not example.dim() and example.is_floating_point()


def _descendants(nodes: list[Node]) -> set[Node]:
    stack, reached = list(nodes), set(nodes)
    while stack:
        for user in stack.pop().users:
            if user not in reached:
                reached.add(user)
                stack.append(user)
    return reached


def _is_written_to(node: Node) -> bool:
    """Whether the graph may write to a value, or to a view of it.

    In-place arithmetic is repeated out of place, if nothing else reads the value.
    """
    stack, aliases = [node], {node}
    while stack:
        alias = stack.pop()
        for user in alias.users:
            if may_mutate(user) and (not user.args or user.args[0] is alias):
                own = name_of(alias) not in MAY_ALIAS and alias.op != "placeholder"
                if user.target not in IN_PLACE or len(alias.users) > 1 or not own:
                    return True
            elif name_of(user) in MAY_ALIAS and user not in aliases:
                aliases.add(user)
                stack.append(user)
    return False


def _head(logits: Any) -> Any:
    """The name of the weight that computes the logits; None if no projection is found."""
    node = logits
    for _ in range(_HEAD_DEPTH):
        if not isinstance(node, Node) or not node.args:
            return None
        if getattr(node.target, "__name__", node.target) in _PROJECTIONS:
            return getattr(node.args[1], "name", None)
        node = node.args[0]
    return None
