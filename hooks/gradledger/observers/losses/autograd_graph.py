"""Finds the losses of a micro-batch by walking the autograd graph down from the root.

The walk has three states. At the level of single numbers, additions separate losses, and each loss
node or outermost reduction is one. Below an outermost reduction, ``elements.Descent`` looks for the
elements. At a loss, at the elements, or at a node that only a model has, the walk ends.

It is bounded, and usually visits fewer than twenty nodes. It evaluates nothing, and changes nothing
in the graph.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from torch.autograd.function import BackwardCFunction

from gradledger.capture.open_terms import Constant
from gradledger.observers.losses.elements import (
    Descent,
    depends_on_parameters_alone,
    search_below,
)
from gradledger.observers.losses.found_losses import (
    DIRECT,
    UNKNOWN,
    Edge,
    Elements,
    GraphPath,
    LossNode,
    constant_of,
    element_count,
    graph_inputs,
    saved_factor,
    sequence_number,
)
from gradledger.observers.losses.loss_patterns import loss_at
from gradledger.observers.losses.node_names import (
    ADDITIONS,
    GUARDS,
    LINEAR,
    LOSS_NODES,
    MODEL_NODES,
    NORMS,
    PRODUCT_OF_VECTORS,
    PRODUCTS,
    REDUCTIONS,
    SCALINGS,
)
from gradledger.observers.losses_compiled.live import CompiledLoss, compiled_losses, passed_on
from gradledger.observers.losses_out_of_sight.calls import call_of
from gradledger.observers.losses_out_of_sight.hidden import data_input, reduces_by_itself

MAX_NODES = 1024
MAX_CONSTANTS = 8


class TooManyNodes(Exception):
    """The walk did not end: which losses are below the root is not known."""


class _Visit(NamedTuple):
    edge: Edge
    path: GraphPath


class _Walk:
    """The walk at the level of single numbers, nearest nodes first. No element is below an end."""

    def __init__(
        self, root: Edge, scaling: frozenset[int], ends: frozenset[Any] = frozenset()
    ) -> None:
        self.losses: list[LossNode] = []
        self._scaling, self._ends = scaling, ends
        self._used: set[Any] = set()  # by loss nodes
        self._met: set[Any] = set()  # of these, those that a descent reached
        self._queue = deque([_Visit(root, DIRECT)])
        self._visited = {root.node}
        self._owners: dict[Any, list[LossNode]] = {}
        self._functions: list[_Visit] = []  # of the whole micro-batch, that return one number
        self._spent = 0

    def _spend(self) -> bool:
        self._spent += 1
        return self._spent <= MAX_NODES

    def run(self) -> list[LossNode]:
        """Walk the whole graph above the models; TooManyNodes if it is too large."""
        while self._queue and self._spend():
            visit = self._queue.popleft()
            node, name = visit.edge.node, visit.edge.node.name()
            compiled = compiled_losses(node, visit.edge.output)
            if compiled:
                self.losses += [_compiled_loss(each, visit) for each in compiled]
                continue
            passed = passed_on(node, visit.edge.output)
            if passed is not None:
                path = _through_compiled(visit.path, passed.divided)
                for below in passed.numbers:
                    self._push(Edge(*below), path)
                continue
            loss = (
                loss_at(node, name, visit.path)
                or _norm_of_parameters(node, name, visit.path)
                or self._hidden_loss(visit)
            )
            if loss is not None:
                self._add(loss)
            elif name in REDUCTIONS and _is_outermost(visit.edge):
                self._descend(node, visit.path)
            elif name not in MODEL_NODES:
                self._go_on(visit, name)
        if self._spent > MAX_NODES:
            raise TooManyNodes
        self._add_functions()
        return self.losses

    def shared(self) -> frozenset[Any]:
        """The nodes on the way to the elements of a loss that a loss node uses, too.

        There are none if no descent passed one of them: the walk has ended at each already.
        """
        for loss in self.losses:
            self._use(loss)
        passed = self._used & self._owners.keys()
        return frozenset(passed | self._met) if passed else frozenset()

    def _use(self, loss: LossNode) -> None:
        if loss.elements is None and not loss.hidden:
            node = loss.smoothed or loss.node
            self._used.update(below for below, _ in node.next_functions if below is not None)

    def _add_functions(self) -> None:
        """The functions below which no loss was found are losses, such as a log-sum-exp of pairs.

        Products of two vectors are losses only if there is nothing else.
        """
        inside = {id(loss.path.function) for loss in self.losses}
        alone = not self.losses
        for (node, _), path in self._functions:
            if (
                (path.nonlinear or alone)
                and id(node) not in inside
                and not depends_on_parameters_alone(node)
            ):
                self.losses.append(LossNode(node, node.name(), path._replace(nonlinear=True)))

    def _add(self, loss: LossNode) -> None:
        """Add a loss. The penalties on single parameters have one weight: the first is enough."""
        key = (loss.name, loss.path.at_once()) if loss.penalty else None
        for other in self.losses if loss.penalty else ():
            if other.penalty and (other.name, other.path.at_once()) == key:
                other.alike.append(loss.node)
                return
        self.losses.append(loss)
        self._use(loss)

    def _hidden_loss(self, visit: _Visit) -> LossNode | None:
        """A function that reduces by itself, if no loss is below it that shows the weights."""
        if not reduces_by_itself(visit.edge):
            return None
        node = visit.edge.node
        if call_of(node) is None:
            inside = search_below(visit.edge, single=True, spend=self._spend)
            if inside.loss is not None or inside.numbers:
                return None
            if data_input(node) is None:
                return None
        return LossNode(node, node.name(), visit.path, hidden=True)

    def _descend(self, reduction: Any, path: GraphPath) -> None:
        descent = Descent(reduction, path, self._owners, self._ends, self._used, self._spend)
        descent.run()
        self._met.update(descent.met)
        for loss in descent.losses:
            if len(descent.losses) > 1:
                loss.reduction = None  # its elements are those of all parts
            self._add(loss)
        for edge, below in descent.numbers:
            self._push(edge, below)

    def _go_on(self, visit: _Visit, name: str) -> None:
        (node, _), path = visit
        inputs = graph_inputs(node)
        is_number = not visit.edge.shape
        linear = path.nonlinear or _is_linear(node, name, inputs)
        learned = None if linear or not is_number else _learned_factor(node, name, inputs)
        if learned is not None:
            factor, loss = learned
            self._push(loss, path._replace(learned=(*path.learned, factor)))
            return
        if not linear:
            for divisor in _divisors_of_factors(node, name) if is_number else ():
                path = path.divided_by(divisor)
            path = path._replace(nonlinear=True, function=node if is_number else None)
            self._functions += [_Visit(visit.edge, path)] if is_number else []
        elif not path.nonlinear and name == PRODUCT_OF_VECTORS:
            self._functions.append(_Visit(visit.edge, path._replace(function=node)))
        if not _scales(node, self._scaling):
            path = _through(path, node, name)
        for _, edge in inputs:
            self._push(edge, path)

    def _push(self, edge: Edge, path: GraphPath) -> None:
        if edge.node not in self._visited:
            self._visited.add(edge.node)
            self._queue.append(_Visit(edge, path))


def find_losses(
    root: Any, scaling: frozenset[int] = frozenset(), output: int = 0
) -> list[LossNode]:
    """The losses below ``root``, as the script computed them; TooManyNodes: the graph is too large.

    ``output``: of the root's outputs, that from which backward starts; a compiled model may return
    its loss after its logits. ``scaling``: the nodes (their numbers) that multiply by a loss scale,
    which is no coefficient.
    """
    only_loss = _find_below_constants(root, scaling)
    if only_loss is not None:
        return [only_loss]
    walk = _Walk(Edge(root, output), scaling)
    losses, shared = walk.run(), walk.shared()
    losses = _Walk(Edge(root, output), scaling, shared).run() if shared else losses
    return sorted(losses, key=lambda loss: sequence_number(loss.reduction or loss.node) or 0)


def _scales(node: Any, scaling: frozenset[int]) -> bool:
    return bool(scaling) and sequence_number(node) in scaling


def _find_below_constants(root: Any, scaling: frozenset[int]) -> LossNode | None:
    """The loss node, if only products with constants are above it, as in most loops."""
    node, scalings = root, list[Any]()
    while node.name() not in LOSS_NODES:
        if node.name() not in SCALINGS or len(scalings) == MAX_CONSTANTS - 1:
            return None
        (below, _), *constants = node.next_functions
        if below is None or any(function is not None for function, _ in constants):
            return None
        scalings.append(node)
        node = below
    path = DIRECT
    for each in scalings:
        if not _scales(each, scaling):
            path = path.through(each, each.name())
    return loss_at(node, node.name(), path)


def below_scaling(root: Edge, scaling: frozenset[int]) -> Edge:
    """The loss below the product of a GradScaler, the first one of several; else the root."""
    node = root.node
    while scaling and node.next_functions:
        below, output = node.next_functions[0]
        if below is None or _scales(node, scaling):
            return root if below is None else Edge(below, output)
        node = below
    return root


def is_only_scaled(root: Any, loss: Any) -> bool:
    """Whether only products with constants are between the root and a loss."""
    node = root
    for _ in range(MAX_CONSTANTS):
        if node is loss or node.name() not in SCALINGS:
            break
        inputs = graph_inputs(node)
        if len(inputs) != 1 or (inputs[0][0] != 0 and node.name().startswith("Div")):
            break
        node = inputs[0][1].node
    return node is loss


def _is_outermost(edge: Edge) -> bool:
    """Whether a reduction returns one number, of something that is not one number already."""
    inputs = graph_inputs(edge.node)
    return len(inputs) == 1 and element_count(edge) == 1 and inputs[0][1].shape not in ((), UNKNOWN)


def _compiled_loss(compiled: CompiledLoss, visit: _Visit) -> LossNode:
    """A loss inside a compiled graph: the path to it goes on there."""
    path = _through_compiled(visit.path, compiled.planned.divided)
    return LossNode(visit.edge.node, compiled.planned.kind, path, compiled=compiled)


def _through_compiled(path: GraphPath, divided: bool) -> GraphPath:
    """The path continued through a compiled graph, whose divisor is not known."""
    return path.divided_by(0.0) if divided and path.function is None else path


def _through(path: GraphPath, node: Any, name: str) -> GraphPath:
    """The path continued through ``node``, unless that divides several losses by 1.

    This is the number of steps that Accelerate knows of; of a single loss, it may be the number of
    its tokens.
    """
    further = path.through(node, name)
    by_one = further.by_one and not path.by_one
    return path if by_one and _is_sum_of_losses(node) else further


def _is_sum_of_losses(node: Any) -> bool:
    for _ in range(MAX_CONSTANTS):
        inputs = graph_inputs(node)
        if node.name() not in SCALINGS or len(inputs) != 1:
            return node.name() in ADDITIONS and len(inputs) > 1
        node = inputs[0][1].node
    return False


def _is_linear(node: Any, name: str, inputs: list[tuple[int, Edge]]) -> bool:
    """Whether the node is linear, or a custom function, of which that is not known.

    A guard is linear in the loss that it passes on; one that it replaces gets no gradient.
    """
    if name in PRODUCTS:
        return len(inputs) == 1 and (inputs[0][0] == 0 or name.startswith("Mul"))
    return name in LINEAR or name in GUARDS or isinstance(node, BackwardCFunction)


def _divisors_of_factors(node: Any, name: str) -> tuple[Constant, ...]:
    """What divides the factors of a product of numbers, and so divides the product.

    ``gate * (loss / K)`` is ``(gate * loss) / K``. A product with a constant below 1 divides, too.
    """
    inputs = graph_inputs(node)
    if name in PRODUCTS and len(inputs) == 2:
        factors = inputs[:1] if name.startswith("Div") else inputs
        return tuple(divisor for _, edge in factors for divisor in _divisors_of(edge.node))
    return ()


def _divisors_of(node: Any, most: int = MAX_CONSTANTS) -> tuple[Constant, ...]:
    """What divides one number: a factor of a product, or each summand of a sum."""
    name, inputs = node.name(), graph_inputs(node)
    if most == 0 or not inputs:
        return ()
    if name in ADDITIONS:
        first, *others = (_divisors_of(edge.node, most - 1) for _, edge in inputs)
        return first if all(each == first for each in others) else ()
    if len(inputs) == 2:
        return _divisors_of_factors(node, name) if most == MAX_CONSTANTS else ()
    (index, edge), *_ = inputs
    if name not in SCALINGS or (index != 0 and name.startswith("Div")):
        return ()
    constant, below = constant_of(node), _divisors_of(edge.node, most - 1)
    if isinstance(constant, float | int) and constant and name.startswith("Mul"):
        constant = 1 / constant if abs(constant) < 1 else None
    return below if constant in (None, 1.0) else (constant, *below)


def _learned_factor(
    node: Any, name: str, inputs: list[tuple[int, Edge]]
) -> tuple[Constant, Edge] | None:
    """The factor, and what it multiplies, of the product of a loss and a function of parameters.

    A learned weight of a task is one number for all micro-batches of a window. None if either may
    depend on data.
    """
    if name not in PRODUCTS or len(inputs) != 2:
        return None
    alone = [depends_on_parameters_alone(edge.node) for _, edge in inputs]
    divides = name.startswith("Div")
    if alone not in ([False, True], [True, False]) or (divides and alone[0]):
        return None
    factor = saved_factor(node, "self" if alone[0] else "other", divides)
    loss = inputs[alone.index(False)][1]
    return (0.0 if factor is None else factor), loss  # the weight is not measured with 0


def _norm_of_parameters(node: Any, name: str, path: GraphPath) -> LossNode | None:
    """A penalty: the norm of parameters, of which the gradient at the norm is the weight."""
    if name not in NORMS or not depends_on_parameters_alone(node):
        return None
    ((index, edge),) = graph_inputs(node)
    elements = Elements(edge.shape, uniform=True)
    return LossNode(node, name, path, None, node, (node, index), elements, penalty=True)


def find_opaque(root: Edge) -> Edge | None:
    """The output of the nearest function that returns a scalar and hides its graph.

    A custom autograd function, or a compiled graph with the loss inside.
    """
    queue = deque([root])
    visited = {root.node}
    while queue and len(visited) <= MAX_NODES:
        edge = queue.popleft()
        if len(edge.shape) > 0:
            continue
        if isinstance(edge.node, BackwardCFunction):
            return edge
        for below, output in edge.node.next_functions:
            if below is not None and below not in visited:
                visited.add(below)
                queue.append(Edge(below, output))
    return None
