"""Finds the elements of a loss below its outermost reduction.

Everything between the root of backward and the elements of a loss is linear in them. So the
gradient that arrives at an element is exactly its weight, whatever it is divided by. The descent
begins at the outermost reduction, the first mean or sum over more than one number, and passes
through linear nodes: masks, weights, selections, means per sequence. It ends at

- a loss node: the elements are counted there;
- a node that a loss node uses, too: below it, the gradient is the sum of both;
- a custom function that returns a vector, because it may hide a loss;
- any other node, because it is not linear: its outputs are the elements. Below it may be a loss
  node (a focal loss, a preference loss), or a softmax whose rows are used (a divergence);
- the sum of two losses for each element: their sums are the elements. If only one of the two
  depends on a loss node, and the other not on its logits (label smoothing), the descent follows it;
- single numbers, such as the losses of several tasks, stacked or assigned to the entries of a
  vector: each is a separate loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.autograd.function import BackwardCFunction
from torch.nn import Parameter

from gradledger.observers.below_losses.correlations import adds_up_samples
from gradledger.observers.losses.found_losses import (
    UNKNOWN,
    Edge,
    Elements,
    GraphPath,
    LossNode,
    Rows,
    element_count,
    graph_inputs,
    is_number,
    shape_of,
    signed,
)
from gradledger.observers.losses.loss_patterns import loss_at
from gradledger.observers.losses.node_names import (
    ADDITIONS,
    ASSIGNMENT,
    DIVERGENCE,
    JOINS,
    LAYERS,
    LINEAR,
    LOG_SOFTMAX,
    MODEL_NODES,
    PARAMETER,
    PARTS,
    PASSED_ON,
    PRODUCTS,
    REDUCTIONS,
    RESHAPES,
    SMOOTHING,
    SOFTMAXES,
    SUBTRACTIONS,
    VIEWS,
)
from gradledger.observers.losses_out_of_sight.hidden import reduces_by_itself

MAX_INSIDE = 64  # nodes visited below one node that is not linear
MAX_TO_SOFTMAX = 8  # nodes between a cross entropy and its softmax
MAX_PARTS = 32  # of a ``cat`` or ``stack``, that are walked one by one

_EVEN = RESHAPES | ADDITIONS  # they do not change the size of a weight
_EVEN_ROWS = _EVEN | {"SumBackward0", "SumBackward1"}
_BESIDE_ROWS = _EVEN | {"GatherBackward0"}  # between a softmax and the product with its targets


@dataclass(slots=True)
class Inside:
    """What is below a node that is not linear."""

    loss: LossNode | None = None  # the nearest
    softmax: Any = None  # whose entries are the elements
    numbers: list[Edge] = field(default_factory=list)  # losses of a whole micro-batch
    logits: set[Any] = field(default_factory=set)  # nodes of which a softmax is taken
    custom: str | None = None  # the nearest custom function, which may hide a loss


@dataclass(slots=True)
class _Position:
    edge: Edge
    path: GraphPath
    trail: tuple[Any, ...]  # the nodes since the outermost reduction, which is the first
    index: int  # of the input of the lowest of them that leads here
    uniform: bool = True  # nothing since then gives elements different weights

    def below(self, inputs: list[tuple[int, Edge]], uniform: bool) -> list[_Position]:
        """The positions at inputs of this node."""
        node = self.edge.node
        path, trail = self.path.through(node, node.name()), (*self.trail, node)
        uniform = uniform and self.uniform
        return [_Position(edge, path, trail, index, uniform) for index, edge in inputs]


class Descent:
    """The walk below one outermost reduction: its ``losses``, and the ``numbers`` to walk from.

    ``owners`` are the losses of the reductions that passed a node: a second one does not pass it,
    because the gradient below is that of both. At one of ``ends`` it ends, and where it would pass
    one of ``used``, the nodes that loss nodes use: these are ``met``. ``spend`` counts a visited
    node, and returns False if there were too many.
    """

    def __init__(
        self,
        reduction: Any,
        path: GraphPath,
        owners: dict[Any, list[LossNode]],
        ends: frozenset[Any],
        used: set[Any],
        spend: Callable[[], bool],
    ) -> None:
        self.losses: list[LossNode] = []
        self.met: list[Any] = []
        self.numbers: list[tuple[Edge, GraphPath]] = []
        self._reduction, self._path = reduction, path
        self._owners, self._ends, self._used, self._spend = owners, ends, used, spend
        ((index, edge),) = graph_inputs(reduction)
        self._single = element_count(edge) == 1
        self._join: _Position | None = None  # the uppermost ``cat`` or ``stack``
        self._positions = deque([_Position(edge, path, (reduction,), index)])

    def run(self) -> None:
        """Walk down until all positions are at elements."""
        while self._positions and self._spend():
            position = self._positions.popleft()
            shape = position.edge.shape
            if shape == UNKNOWN:
                continue
            if not shape:
                self.numbers.append((position.edge, position.path))
            elif not self._ends_at_loss(position):
                self._go_on(position)
        if self._join is not None and all(loss.elements is not None for loss in self.losses):
            self.losses.clear()  # the joined parts are elements of one loss
            self._end_at_elements(self._join)

    def _ends_at_loss(self, position: _Position) -> bool:
        node = position.edge.node
        loss = loss_at(node, node.name(), position.path)
        if loss is None and self._is_hidden_loss(position):
            loss = LossNode(node, node.name(), position.path)
        if loss is not None:
            self._add(loss, position)
        return loss is not None

    def _is_hidden_loss(self, position: _Position) -> bool:
        """Whether a custom function returns the elements, and no loss node is below it."""
        if not _is_custom(position.edge.node):
            return False
        return self._search_below(position.edge).loss is None

    def _add(self, loss: LossNode, position: _Position) -> None:
        loss.reduction, loss.link = self._reduction, (position.trail[-1], position.index)
        self.losses.append(loss)

    def _go_on(self, position: _Position) -> None:
        node, name = position.edge.node, position.edge.node.name()
        if node in self._ends:
            self._end_at_elements(position)
            return
        inputs = graph_inputs(node)
        numbers = _losses_of_parts(position.edge, inputs)
        if numbers:
            self.numbers += [(edge, position.path) for edge in numbers]
            return
        if name in JOINS:
            uniform, edges = False, [each for each in inputs if each[1].shape]
            edges = edges if len(inputs) <= MAX_PARTS else []
        else:
            edges = self._linear_inputs(position.edge, inputs)
            uniform = len(inputs) == 1 and _keeps_even(node, _EVEN)
        if edges and node in self._used:
            self.met.append(node)
            self._end_at_elements(position)
            return
        if name in JOINS:
            self._join = self._join or position
        if not edges:
            self._end_at_elements(position)
        elif node in self._owners:
            for loss in self._owners[node]:
                loss.reduction = None  # the elements of two reductions
        else:
            self._owners[node] = self.losses
            self._positions += position.below(edges, uniform)

    def _linear_inputs(self, edge: Edge, inputs: list[tuple[int, Edge]]) -> list[tuple[int, Edge]]:
        """The input of a node that its output is linear in; none if it is not."""
        name = edge.node.name()
        if _is_custom(edge.node) or name == PASSED_ON:
            return self._towards_loss(inputs)
        if name in ADDITIONS and len(inputs) > 1:
            return self._towards_loss(inputs)
        if len(inputs) != 1 or not (name in LINEAR or name in PRODUCTS):
            return []
        if name in PRODUCTS and _is_repeated(edge, inputs[0][1]):
            return []
        is_divisor = name.startswith("DivBackward") and inputs[0][0] != 0
        return [] if is_divisor else inputs

    def _towards_loss(self, inputs: list[tuple[int, Edge]]) -> list[tuple[int, Edge]]:
        """The only input with a loss below, if the others do not depend on the same logits."""
        below = [self._search_below(edge) for _, edge in inputs]
        losses = [inside.loss for inside in below if inside.loss is not None]
        if len(losses) != 1 or any(_logits_of(losses[0]) in inside.logits for inside in below):
            return []
        return [each for each, inside in zip(inputs, below, strict=True) if inside.loss is not None]

    def _end_at_elements(self, position: _Position) -> None:
        inside = self._search_below(position.edge)
        if inside.numbers:
            self.numbers.append((position.edge, position.path))
            return
        elements = Elements(position.edge.shape, position.uniform, inside.loss, inside.custom)
        kind = self._reduction.name() if inside.loss is None else inside.loss.name
        softmax = _softmax_of_view(position.edge) or inside.softmax
        if softmax is not None and inside.loss is None:
            elements.rows = _rows(softmax, elements.shape, position)
            if _is_divergence(softmax, elements.rows, position.trail):
                kind = DIVERGENCE
            elif _is_smoothing(softmax, elements, position.trail):
                kind = SMOOTHING
        path = self._path if position.uniform else position.path
        if _is_statistic(position.trail) or adds_up_samples(position.edge.node):
            function = self._path.function or self._reduction
            path = self._path._replace(nonlinear=True, function=function)
        loss = LossNode(position.edge.node, kind, path, elements=elements)
        loss.penalty = inside.loss is None and depends_on_parameters_alone(position.edge.node)
        self._add(loss, position)

    def _search_below(self, edge: Edge) -> Inside:
        return search_below(edge, self._single, self._spend)


def _is_custom(node: Any) -> bool:
    """Whether it is a custom function of the script, not a compiled graph, nor DDP's."""
    name = node.name()
    return name not in MODEL_NODES and name != PASSED_ON and isinstance(node, BackwardCFunction)


def search_below(edge: Edge, single: bool, spend: Callable[[], bool]) -> Inside:
    """Search below (and at) an output for a loss node, a softmax of its shape, and for numbers.

    Numbers are stacked scalars, losses that are reduced, and, if the output is a ``single`` number
    itself, full means and sums.
    """
    inside, shape = Inside(), edge.shape
    queue, visited = deque([(edge, True)]), {edge.node}
    while queue and len(visited) <= MAX_INSIDE and spend():
        current, elementwise = queue.popleft()
        node, name = current.node, current.node.name()
        loss = loss_at(node, name, GraphPath())
        is_number = not current.shape
        if loss is not None and is_number:
            inside.numbers.append(current)
        elif loss is not None:
            inside.loss = inside.loss or loss
        elif name in SOFTMAXES:
            inside.logits.add(node.next_functions[0][0])
            if elementwise and current.shape == shape:
                inside.softmax = node
        elif single and is_number and name in REDUCTIONS:
            inside.numbers.append(current)
        elif name not in MODEL_NODES:
            if inside.custom is None and _is_custom(node):
                inside.custom = name
            inside.numbers += _stacked_losses(graph_inputs(node)) if name in JOINS else []
            elementwise = elementwise and name not in RESHAPES
            for _, below in graph_inputs(node):
                if below.node not in visited:
                    visited.add(below.node)
                    queue.append((below, elementwise and below.shape == shape))
    return inside


def _is_repeated(edge: Edge, factor: Edge) -> bool:
    """Whether one number, which is no loss, is multiplied by each element of a tensor: by data."""
    repeated = element_count(factor) == 1 and element_count(edge) > 1
    return repeated and not _is_loss_number(factor)


def _keeps_even(node: Any, names: frozenset[str]) -> bool:
    """Whether a node is one of ``names``, or a product with one number."""
    return node.name() in names or (node.name() in PRODUCTS and is_number(node))


def _losses_of_parts(edge: Edge, inputs: list[tuple[int, Edge]]) -> list[Edge]:
    """The single numbers that a tensor was made of, if they are losses."""
    name = edge.node.name()
    if name == ASSIGNMENT:
        return _assigned_losses(edge)
    return _stacked_losses(inputs) if name in JOINS else []


def _assigned_losses(edge: Edge) -> list[Edge]:
    """The losses that were assigned to entries of a vector: ``losses[0] = ...``."""
    numbers: list[Edge] = []
    queue, visited = deque([edge]), {edge.node}
    while queue and len(visited) <= MAX_INSIDE:
        for _, below in graph_inputs(queue.popleft().node):
            if below.node in visited:
                continue
            visited.add(below.node)
            if below.node.name() in PARTS:
                queue.append(below)
            elif not below.shape and _is_loss_number(below):
                numbers.append(below)
    return numbers


def _logits_of(loss: LossNode) -> Any:
    """The node of which the (log-)softmax of a cross entropy is taken; None for other losses."""
    node = loss.smoothed or loss.node
    for _ in range(MAX_TO_SOFTMAX):
        if node is None or not node.next_functions:
            break
        if node.name() in SOFTMAXES:
            return node.next_functions[0][0]
        node = node.next_functions[0][0]
    return None


def _stacked_losses(inputs: list[tuple[int, Edge]]) -> list[Edge]:
    """The inputs of a ``stack`` or ``cat`` of single numbers, if they are losses."""
    numbers = [edge for _, edge in inputs]
    if any(element_count(edge) != 1 for edge in numbers):
        return []
    return numbers if any(map(_is_loss_number, numbers[:1])) else []


def _is_loss_number(edge: Edge) -> bool:
    """Whether a number is a loss node or a reduction, or a function of one."""
    queue, visited = deque([edge]), {edge.node}
    while queue and len(visited) <= MAX_INSIDE:
        node = queue.popleft().node
        if node.name() in REDUCTIONS or loss_at(node, node.name(), GraphPath()) is not None:
            return True
        if reduces_by_itself(Edge(node)):
            return True
        for _, below in graph_inputs(node):
            if below.node not in visited and element_count(below) == 1:
                visited.add(below.node)
                queue.append(below)
    return False


def _softmax_of_view(edge: Edge) -> Any:
    """The softmax that an output is a view of, if its rows are those of the view."""
    node, shape = edge.node, edge.shape
    if node.name() not in VIEWS:
        return None
    for _ in range(MAX_TO_SOFTMAX):
        if node is None or node.name() not in VIEWS:
            break
        node = node.next_functions[0][0]
    if node is None or node.name() not in SOFTMAXES:
        return None
    whole = shape_of(node)
    last = signed([node._saved_dim])[0] % len(whole) == len(whole) - 1
    return node if last and shape and shape[-1] == whole[-1] else None


def _rows(softmax: Any, shape: tuple[int, ...], position: _Position) -> Rows:
    """The rows of a softmax at the elements, or below them."""
    is_view = _softmax_of_view(position.edge) is softmax
    classes = len(shape) - 1 if is_view else signed([softmax._saved_dim])[0] % len(shape)
    product = _product_above(position.trail)
    even = all(node is product or _keeps_even(node, _EVEN_ROWS) for node in position.trail[1:])
    return Rows(softmax, classes, product, even, is_view or position.edge.node is softmax)


def _is_statistic(trail: tuple[Any, ...]) -> bool:
    """Whether a tensor multiplies what a reduction over the whole micro-batch returns.

    A router loss is the product of two such statistics, one of which is not in the graph.
    """
    multiplied = False
    for node in trail[1:]:
        name = node.name()
        multiplied = multiplied or (name in PRODUCTS and not is_number(node))
        if (
            multiplied
            and name in REDUCTIONS
            and 0 in signed(getattr(node, "_saved_dim", None) or ())
        ):
            return True
    return False


def _is_divergence(softmax: Any, rows: Rows, trail: tuple[Any, ...]) -> bool:
    """Whether the rows are those of ``target * (target.log() - softmax.log())``."""
    differences = any(node.name() in SUBTRACTIONS for node in trail)
    return softmax.name() == LOG_SOFTMAX and rows.product is not None and differences


def _is_smoothing(softmax: Any, elements: Elements, trail: tuple[Any, ...]) -> bool:
    """Whether the log-probabilities of all classes are added up, each with the same weight."""
    rows = elements.rows
    if softmax.name() != LOG_SOFTMAX or rows is None or not rows.sums:
        return False
    for node in reversed(trail):
        if node.name() in REDUCTIONS:
            dims = getattr(node, "_saved_dim", None)
            return dims is None or rows.dim in [d % len(elements.shape) for d in signed(dims)]
        if not _keeps_even(node, ADDITIONS):
            break
    return False


def _product_above(trail: tuple[Any, ...]) -> Any:
    """The lowest product with a tensor above a softmax, if it is next to it."""
    for node in reversed(trail):
        name = node.name()
        if name in PRODUCTS and not is_number(node):
            return node
        if name not in _BESIDE_ROWS and name not in PRODUCTS:
            break
    return None


def depends_on_parameters_alone(node: Any) -> bool:
    """Whether a node is a function of parameters: no input of a layer is data.

    An elementwise operation with data is recognised by its shape, which is not the parameter's.
    Most nodes have too many below them, so these are counted before any is looked at.
    """
    nodes, visited = [node], {node}
    for current in nodes:  # which grows
        for below, _ in current.next_functions:
            if below is not None and below not in visited:
                visited.add(below)
                nodes.append(below)
        if len(nodes) > MAX_INSIDE:
            return False
    return not any(map(_has_data, nodes))


def _has_data(node: Any) -> bool:
    """Whether a node is data that has a gradient, or an input of it, not in the graph, may be."""
    name = node.name()
    if name == PARAMETER:
        return not isinstance(node.variable, Parameter)
    inputs = graph_inputs(node)
    if not inputs or name == "EmbeddingBackward0" or isinstance(node, BackwardCFunction):
        return True
    if len(inputs) == len(node.next_functions):
        return False
    if name in LAYERS:
        return True
    largest = max(element_count(edge) for _, edge in inputs)
    return element_count(Edge(node)) > largest
