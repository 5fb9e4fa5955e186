"""Recognises a loss at a node: a loss of PyTorch, or nodes that together are a cross entropy; and
what it compares: features of all ranks, cached ones, or pairs of examples.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradledger.capture.open_terms import Part
from gradledger.observers.losses.found_losses import (
    UNKNOWN,
    GraphPath,
    LossNode,
    constant_of,
    element_count,
    graph_inputs,
    is_number,
    shape_of,
    signed,
)
from gradledger.observers.losses.node_names import (
    ADDITIONS,
    DIVERGENCE,
    JOINS,
    LOG_SOFTMAX,
    LOGSUMEXP,
    LOSS_NODES,
    MODEL_NODES,
    PARAMETER,
    PICKS,
    PRODUCTS,
    PROJECTIONS,
    REDUCTIONS,
    RESHAPES,
    SELECTIONS,
    SMOOTHING,
    SOFT_CROSS_ENTROPY,
    SOFTMAXES,
    WEIGHT_NORM,
)
from gradledger.observers.losses.saved_hooks import saved, saved_list

MOST_ABOVE_PRODUCT = 6  # nodes between a root and a product that it adds up

# Between a log_softmax and a pick, or a pick and the rest.
_SHIFTS = RESHAPES | {"SliceBackward0", "SelectBackward0"}
# Between a contrastive loss and the features of which it computes similarities.
_SIMILARITIES = (
    RESHAPES | SELECTIONS | PRODUCTS | ADDITIONS | SOFTMAXES | {"MmBackward0", "BmmBackward0"}
)
_MOST_SIMILARITIES = 48  # nodes
_ENDS_OF_SIMILARITIES = MODEL_NODES - SOFTMAXES - {PARAMETER, "MmBackward0", "BmmBackward0"}
_MOST_ABOVE_PARTS = 24  # nodes
_OF_ROWS = RESHAPES | PRODUCTS | {"TBackward0"}
# Matrices of all pairs of rows of two inputs.
_ALL_PAIRS = frozenset({"MmBackward0", "CdistBackward0", "EuclideanDistBackward0"})
_RUNNING_SUMS = frozenset({"CumsumBackward0", "LogcumsumexpBackward0"})
_LOGARITHMS = frozenset({"LogBackward0", "Log1PBackward0"})
_BY_ELEMENT = (
    ADDITIONS
    | PRODUCTS
    | {"ExpBackward0", "CatBackward0"}
    | {"MaskedFillBackward0", "MaskedFillBackward1", "WhereBackward0"}
)
# The search for pairs ends there; sums over groups, such as over the edges of a node, are no pairs.
_ENDS_OF_PAIRS = (
    _ALL_PAIRS
    | MODEL_NODES
    | {"IndexAddBackward0", "ScatterAddBackward0", "ScatterReduceBackward0", "IndexPutBackward0"}
)
_ROUNDING = 1e-6  # of the weights of a label smoothing, which add up to 1
_HEAD_DEPTH = 24  # nodes between a cross entropy and the projection that computes its logits


def product_with_tensor(root: Any) -> tuple[Any, torch.Tensor] | None:
    """The product of an output with a tensor of its size that a root adds up, and this tensor.

    Such a root passes the tensor on as the gradient of the output, times the numbers in between.
    """
    try:
        return _product_with_tensor(root)
    except RuntimeError:  # the tensor was freed, or changed in place, so that this backward fails
        return None


def _product_with_tensor(root: Any) -> tuple[Any, torch.Tensor] | None:
    node = root
    for _ in range(MOST_ABOVE_PRODUCT):
        inputs = graph_inputs(node)
        if len(inputs) != 1:
            return None
        (index, edge), name = inputs[0], node.name()
        is_dot = name.startswith("DotBackward")
        if is_dot or (name == "MulBackward0" and not is_number(node)):
            other = saved(node, ("tensor" if is_dot else "other") if index == 0 else "self")
            same = other is not None and other.numel() == element_count(edge) > 1
            return (node, other) if same and other is not None else None
        if not (name in REDUCTIONS or name in RESHAPES or (name in PRODUCTS and is_number(node))):
            return None
        node = edge.node
    return None


def holds_gathered_features(loss: LossNode, ranks: int) -> bool:
    """Whether a loss compares the features of all ranks, and those of the others are constants.

    ``all_gather`` is not seen by autograd. A loop joins what it gathered, with its own features in
    their place: as many parts as there are ranks, of which one has a gradient.
    """
    return any(
        _is_gathered(node, ranks) for node in _nodes_below(loss, lambda name: name in _SIMILARITIES)
    )


def _is_gathered(node: Any, ranks: int) -> bool:
    parts = _parts_of_ranks(node, ranks)
    return len(parts) - parts.count(None) == 1


def gathers_by_function(loss: LossNode, ranks: int) -> bool:
    """Whether a loss compares features that a function of the script gathers from all ranks.

    Its outputs are those of the ranks. Its backward may add up the gradients of all ranks, as that
    of ``torch.distributed.nn`` does, or return those of its rank alone.
    """
    for node in _nodes_below(loss, lambda name: name in _SIMILARITIES | JOINS):
        parts = _parts_of_ranks(node, ranks)
        function = getattr(parts[0], "_forward_cls", None) if len(set(parts)) == 1 else None
        if function is not None and function.__module__.partition(".")[0] != "torch":
            return True
    return False


def _parts_of_ranks(node: Any, ranks: int) -> list[Any]:
    """The nodes of the parts that a node joins, as many as there are ranks; else none."""
    if node.name() != "CatBackward0" or node._saved_dim != 0:
        return []
    parts = [part for part, _ in node.next_functions]
    return parts if len(parts) == ranks else []


def only_part(loss: Any) -> Part | None:
    """The part of the features behind a loss that has a gradient; None if it is not one of several.

    Features of other micro-batches that were cached without a graph are constants beside it. The
    search ends at the layers of a model: features are compared with each other above them.
    """
    stack, visited, beside = [loss], {loss}, 0
    single: set[tuple[int, int]] = set()
    while stack:
        node = stack.pop()
        if node.name() in _ENDS_OF_SIMILARITIES:
            return None
        below = [each for each, _ in node.next_functions]
        live = [index for index, each in enumerate(below) if each is not None]
        if len(live) == 1 < len(below) and node.name() == "CatBackward0":
            single.add((live[0], len(below)))
            continue
        if not below:
            leaf = getattr(node, "variable", None)
            if leaf is None:
                return None  # of what has a gradient there, nothing is known
            beside = max(beside, leaf.numel())
        new = {below[index] for index in live} - visited
        visited |= new
        stack += new
        if len(visited) > _MOST_ABOVE_PARTS:
            return None
    return Part(*single.pop(), beside) if len(single) == 1 else None


def compares_examples(loss: LossNode) -> bool:
    """Whether elements of a loss are pairs of examples, or sums of examples.

    Pairs are of a matrix of rows and the same rows, of rows that integer indices pick twice, or
    picked from a matrix of rows and stored features, more often than it has rows. Sums are of each
    row with all rows before it, or of the similarities of all rows to the parameter of a class.

    How many of them a micro-batch has follows from its classes, not from its size.
    """
    nodes = [loss.node, *_nodes_below(loss, lambda name: name not in _ENDS_OF_PAIRS)]
    picked = set(filter(None, map(_picked_rows, nodes)))
    twice = len({rows for rows, _ in picked}) < len(picked)
    tests = (_compares_rows, _picks_pairs, _adds_up_rows)
    return twice or any(test(node) for node in nodes for test in tests)


def _compares_rows(node: Any) -> bool:
    sides = [_rows(side) for side, _ in node.next_functions]
    pairs = node.name() in _ALL_PAIRS and len(sides) == 2
    return pairs and sides[0] is not None and sides[0] is sides[1]


def _picks_pairs(node: Any) -> bool:
    """Of rows and stored ones, which have no gradient."""
    if node.name() != "IndexBackward0" or len(node._saved_self_sym_sizes) != 2:
        return False
    indices = saved_list(node, "indices")
    if len(indices) != 2 or any(
        i is None or i.dim() != 1 or i.dtype is torch.bool for i in indices
    ):
        return False
    matrix = _matrix_of_pairs(node)
    often = any(i is not None and i.numel() > node._saved_self_sym_sizes[0] for i in indices)
    return often and matrix is not None and None in [side for side, _ in matrix.next_functions]


def _adds_up_rows(node: Any) -> bool:
    """As the risk sets of a survival loss, and what a loss adds up for each proxy of a class."""
    name = node.name()
    if name in _RUNNING_SUMS:
        return bool(node._saved_dim == 0)
    if name in _LOGARITHMS:
        node = node.next_functions[0][0]
        while node is not None and node.name() in ADDITIONS:
            node = node.next_functions[0][0]
        name = "" if node is None else node.name()
    if name not in (LOGSUMEXP, "SumBackward1") or tuple(node._saved_dim) != (0,):
        return False
    matrix = _matrix_of_pairs(node)
    if matrix is None or len(matrix.next_functions) != 2:
        return False
    rows, columns = (_rows(side) for side, _ in matrix.next_functions)
    return _is_parameter(columns) and not _is_parameter(rows)


def _is_parameter(node: Any) -> bool:
    return node is not None and node.name() == PARAMETER


def _matrix_of_pairs(node: Any) -> Any:
    """The matrix of pairs of rows of which the input of a node is a function by element, if any."""
    node = node.next_functions[0][0]
    while node is not None and node.name() in _BY_ELEMENT:
        node = next((below for below, _ in node.next_functions if below is not None), None)
    return node if node is not None and node.name() in _ALL_PAIRS else None


def _picked_rows(node: Any) -> tuple[Any, int] | None:
    """The node of the rows that this one picks by their integer indices, and which indices.

    A mask leaves some rows out instead.
    """
    index = None
    if node.name() == "IndexSelectBackward0" and node._saved_dim == 0:
        index = saved(node, "index")
    elif node.name() == "IndexBackward0":
        indices = saved_list(node, "indices")
        index = indices[0] if len(indices) == 1 else None
    if index is None or index.dtype == torch.bool:
        return None
    return node.next_functions[0][0], index.data_ptr()


def _nodes_below(loss: LossNode, passes: Callable[[str], bool]) -> Iterator[Any]:
    """The nodes below a loss, breadth-first, and below those whose names ``passes`` accepts."""
    queue, visited = deque([loss.node]), {loss.node}
    while queue and len(visited) <= _MOST_SIMILARITIES:
        for below, _ in queue.popleft().next_functions:
            if below is None or below in visited:
                continue
            visited.add(below)
            yield below
            if passes(below.name()):
                queue.append(below)


def _rows(node: Any) -> Any:
    """The node of the rows that were reshaped, transposed and normalised: ``rows / norm``."""
    while node is not None and node.name() in _OF_ROWS:
        node = node.next_functions[0][0]
    return node


def loss_at(node: Any, name: str, path: GraphPath) -> LossNode | None:
    """The loss that this node is, if it is one."""
    if name in LOSS_NODES or (name in PICKS and _picks_log_probabilities(node)):
        return LossNode(node, name, path)
    if name in ("SumBackward0", "SumBackward1") and soft_target_side(node) is not None:
        return LossNode(node, SOFT_CROSS_ENTROPY, path)
    if name == "AddBackward0":
        smoothed = _label_smoothing(node)
        if smoothed is not None:
            size = _smoothed_positions(node, smoothed)
            return LossNode(node, smoothed.name(), path, smoothed, smoothed_size=size)
    if name == "SubBackward0":
        pick = _pick_minus_logsumexp(node)
        if pick is not None:
            return LossNode(node, pick, path)
    return None


def head_of(loss: LossNode) -> tuple[Any, Any]:
    """The source of the logits of a cross entropy or a divergence, and the node that computed them.

    The source is the last projection's parameter: the chunks of one loss share it, and so do
    several forwards of one model, whose nodes differ. If there is no parameter, it is the node. Of
    a compiled loss, the node is not known. Other losses have neither.
    """
    if loss.compiled is not None:
        return loss.compiled.planned.head, None
    node = loss.smoothed or loss.node
    if loss.elements is not None and loss.name != SMOOTHING:
        if loss.elements.inside is not None:
            return head_of(loss.elements.inside)
        if loss.name != DIVERGENCE or loss.elements.rows is None:
            return None, None
        node = loss.elements.rows.softmax
    by_hand = (*PICKS, SOFT_CROSS_ENTROPY, SMOOTHING, DIVERGENCE)
    if not (node.name().startswith("NllLoss") or loss.name in by_hand):
        return None, None
    for _ in range(_HEAD_DEPTH):
        below = node.next_functions[0][0] if node.next_functions else None
        if node.name() in PROJECTIONS or below is None:
            break
        node = below
    parameter = parameter_of(node)
    return node if parameter is None else parameter, node


def soft_target_side(node: Any) -> int | None:
    """The index of the factor with the probabilities, if ``node`` sums ``target * log_softmax``.

    The sum must be over everything, or over the classes alone.
    """
    product = node.next_functions[0][0]
    if product is None or product.name() != "MulBackward0":
        return None
    sides = [below for below, _ in product.next_functions]
    for side, (logs, target) in enumerate((sides, sides[::-1])):
        if target is None and logs is not None and logs.name() == LOG_SOFTMAX:
            summed = getattr(node, "_saved_dim", None)
            rank = len(node._saved_self_sym_sizes)
            over = None if summed is None else [d % rank for d in signed(summed)]
            return 1 - side if over in (None, [signed([logs._saved_dim])[0] % rank]) else None
    return None


def _picks_log_probabilities(node: Any) -> bool:
    """Whether the node picks one entry of each row of a log_softmax."""
    logs = _without(_SHIFTS, node.next_functions[0][0])
    if logs is None:
        return False
    if logs.name() == LOG_SOFTMAX:
        classes = signed([logs._saved_dim])[0]
    elif logs.name() == "SubBackward0" and _is_logsumexp(logs.next_functions[-1][0]):
        classes = -1
    else:
        return False
    rows, picked = shape_of(logs), shape_of(node)
    if not rows or len(picked) < 2:
        return True
    if node.name() == "GatherBackward0":
        return len(picked) != len(rows) or picked[classes % len(rows)] <= 1
    return picked[-1] != rows[-1]  # otherwise, a mask selects rows


def _pick_minus_logsumexp(node: Any) -> str | None:
    """The name of the pick, if the node is ``logits.gather(...) - logits.logsumexp(-1)``."""
    (pick, _), (normaliser, _) = node.next_functions
    pick = _without(_SHIFTS, pick)
    if pick is None or pick.name() not in PICKS or not _is_logsumexp(normaliser):
        return None
    name: str = pick.name()
    return name


def _is_logsumexp(node: Any) -> bool:
    node = _without(_SHIFTS | JOINS, node)  # one for each sequence, to save memory
    return node is not None and node.name() == LOGSUMEXP


def _without(names: frozenset[str], node: Any) -> Any:
    """The first node on the way down that has another name."""
    while node is not None and node.name() in names:
        node = node.next_functions[0][0]
    return node


def _label_smoothing(node: Any) -> Any:
    """The nll node inside ``(1 - eps) * nll + eps / C * smooth``, else None.

    ``F.cross_entropy(label_smoothing=eps)`` is composed of these nodes (aten LossNLL.cpp); both
    halves are above one log_softmax. A token's weight is that of the sum, not (1 - eps) of it.
    """
    halves = [below for below, _ in node.next_functions]
    if len(halves) != 2 or any(h is None or not h.name().startswith("MulBackward") for h in halves):
        return None
    inner = [half.next_functions[0][0] for half in halves]
    for nll, smooth in (inner, inner[::-1]):
        if nll is None or smooth is None or not nll.name().startswith("NllLoss"):
            continue
        base = _log_softmax(nll)
        if base is not None and _log_softmax(smooth) is base:
            return nll
    return None


def _smoothed_positions(node: Any, nll: Any) -> int | None:
    """How many positions the smoothing in ``node`` is a mean over, if none is left out; else None.

    So it is by hand: that of PyTorch leaves out what is ignored. And the weights of both halves add
    up to 1, as of a label smoothing.
    """
    halves = [below for below, _ in node.next_functions]
    if halves[0].name() == "MulBackward1":  # by a number of PyTorch
        return None
    if halves[0].next_functions[0][0] is not nll:
        halves.reverse()
    weight, share, reductions = constant_of(halves[0]), 1.0, []
    below, base = halves[1], _log_softmax(nll)
    while below is not base:
        name, inputs = below.name(), [n for n, _ in below.next_functions if n is not None]
        if name.startswith("MeanBackward") or name == "SumBackward1":
            reductions.append(name)
            if name == "SumBackward1":
                sizes = below._saved_self_sym_sizes
                share *= math.prod(int(sizes[dim]) for dim in signed(below._saved_dim))
        elif name == "NegBackward0":
            share = -share
        elif name.startswith(("MulBackward", "DivBackward")):
            constant = constant_of(below)
            if not isinstance(constant, float) or not constant:
                return None
            share = share * constant if name.startswith("Mul") else share / constant
        elif name not in RESHAPES:
            return None
        if len(inputs) != 1:
            return None
        below = inputs[0]
    shape, dim = shape_of(base), signed([base._saved_dim])[0]
    if reductions[:1] != ["MeanBackward0"] or not isinstance(weight, float):
        return None
    if not shape or shape == UNKNOWN or abs(weight - share - 1) > _ROUNDING:
        return None
    return math.prod(shape) // (shape[dim] or 1)


def _log_softmax(node: Any) -> Any:
    for _ in range(12):
        if node is None or node.name() == LOG_SOFTMAX:
            return node
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def parameter_of(projection: Any) -> Any:
    """The weight that a projection multiplies by; None if it is not a parameter."""
    for node, _ in reversed(projection.next_functions):  # the weight comes after the input
        for _ in range(4):  # transposed, cast, of a normalised direction
            if node is None or node.name() == PARAMETER:
                break
            single = len(node.next_functions) == 1 or node.name() == WEIGHT_NORM
            node = node.next_functions[0][0] if single else None
        if node is not None and node.name() == PARAMETER:
            return node.variable
    return None
