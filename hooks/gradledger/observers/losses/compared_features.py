"""What a loss compares: features of all ranks, cached ones, or pairs of examples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradledger.capture.open_terms import Part
from gradledger.observers.losses.found_losses import LossNode
from gradledger.observers.losses.node_names import (
    ADDITIONS,
    JOINS,
    LOGSUMEXP,
    MODEL_NODES,
    PARAMETER,
    PRODUCTS,
    RESHAPES,
    SELECTIONS,
    SOFTMAXES,
)
from gradledger.observers.losses.saved_hooks import saved, saved_list

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
