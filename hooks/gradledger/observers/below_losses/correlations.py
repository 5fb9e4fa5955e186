"""Whether the elements of a loss are correlations: each is a statistic of the whole micro-batch.

A matrix of correlations is a product of two matrices that sums over the examples, where both are
less their means over the examples. Without the means, one may be a computed weight. Only names and
sizes of the graph are read. The summed dimension is followed through transposes and views down to
the features, because a square matrix has the same size in both.
"""

from __future__ import annotations

from typing import Any

from gradledger.observers.losses.found_losses import graph_inputs, shape_of, signed
from gradledger.observers.losses.node_names import (
    ADDITIONS,
    GUARDS,
    PRODUCTS,
    RESHAPES,
    SELECTIONS,
    SUBTRACTIONS,
)

# The product that sums over examples, and which dimension of its two inputs that is. A product of
# batches is one of two matrices if it has one batch, as that of einsum has.
_SUMMED = {"MmBackward0": (1, 0), "BmmBackward0": (2, 1)}
# Between the elements of a loss and the matrix.
_ABOVE_MATRIX = (
    RESHAPES
    | SELECTIONS
    | PRODUCTS
    | ADDITIONS
    | GUARDS
    | {"PowBackward0", "AbsBackward0", "DiagonalBackward0", "SqueezeBackward0"}
)
_MOST_ABOVE_MATRIX = 16  # nodes
_MOST_ABOVE_FEATURES = 12  # nodes
_MEANS = frozenset({"MeanBackward1", "VarMeanBackward0", "StdMeanBackward0"})
_MOVED = RESHAPES | {"TBackward0"}  # what moves dimensions and changes no value


def adds_up_samples(node: Any) -> bool:
    """Whether an output is a function by element of a matrix of correlations.

    As ``a.T @ b``, ``einsum("bi,bj->ij", a, b)``, ``torch.cov`` and ``torch.corrcoef`` compute it.
    """
    for _ in range(_MOST_ABOVE_MATRIX):
        if node is None or node.name() in _SUMMED:
            break
        if node.name() not in _ABOVE_MATRIX:
            return False
        node = _first_input(node)
    if node is None or node.name() not in _SUMMED or len(node.next_functions) != 2:
        return False
    if len(shape_of(node)) == 3 and shape_of(node)[0] != 1:
        return False
    left, right = (
        _centred(side, summed)
        for (side, _), summed in zip(node.next_functions, _SUMMED[node.name()], strict=True)
    )
    if left is None or right is None:
        return False
    return left.name() == right.name() and shape_of(left) == shape_of(right)


def _first_input(node: Any) -> Any:
    return next((below for below, _ in node.next_functions if below is not None), None)


def _centred(node: Any, dimension: int) -> Any:
    """The node that makes the mean over the examples zero, if ``dimension`` of a node is these."""
    for _ in range(_MOST_ABOVE_FEATURES):
        if node is None:
            return None
        name = node.name()
        if "BatchNorm" in name:
            return node if dimension == 0 else None
        if name in SUBTRACTIONS:
            is_centred = _is_mean(node.next_functions[-1][0], shape_of(node), dimension)
            return node if is_centred and _is_of_examples(node, dimension) else None
        below = _below(node, dimension)
        if below is None:
            return None
        dimension, node = below, node.next_functions[0][0]
    return None


def _is_mean(node: Any, shape: tuple[int, ...], dimension: int) -> bool:
    """Whether a node is the mean over one dimension of what has this shape."""
    is_divided = False
    for _ in range(_MOST_ABOVE_FEATURES):
        name = "" if node is None else node.name()
        if name in _MEANS or (name == "SumBackward1" and is_divided):
            ((_, edge),) = graph_inputs(node)
            over = signed(node._saved_dim or ())
            return edge.shape == shape and [d % len(shape) for d in over] == [dimension]
        if name not in RESHAPES and name not in PRODUCTS:
            return False
        is_divided |= name in PRODUCTS
        node = node.next_functions[0][0]
    return False


def _is_of_examples(node: Any, dimension: int) -> bool:
    """Whether a dimension of a node is the first of the features, before they were transposed."""
    current: int | None = dimension
    node = node.next_functions[0][0]
    for _ in range(_MOST_ABOVE_FEATURES):
        if node is None or current is None or node.name() not in _MOVED:
            break
        current, node = _below(node, current), node.next_functions[0][0]
    return current == 0


def _below(node: Any, dimension: int) -> int | None:
    """Which dimension of the first input is this one of the output; None if that is not known."""
    name, sizes = node.name(), shape_of(node)
    if name in PRODUCTS:
        return dimension if _shape_below(node) == sizes else None
    if name == "TBackward0":
        return 1 - dimension
    if name == "TransposeBackward0":
        first, second = (d % len(sizes) for d in signed([node._saved_dim0, node._saved_dim1]))
        return {first: second, second: first}.get(dimension, dimension)
    if name == "PermuteBackward0":
        return signed(node._saved_dims)[dimension] % len(sizes)
    return _below_view(node, dimension) if name in _MOVED else None


def _below_view(node: Any, dimension: int) -> int | None:
    """Of a view that only adds or removes dimensions of size 1."""
    above, below = shape_of(node), _shape_below(node)
    long_above = [d for d, size in enumerate(above) if size != 1]
    long_below = [d for d, size in enumerate(below) if size != 1]
    if [above[d] for d in long_above] != [below[d] for d in long_below]:
        return None
    return dict(zip(long_above, long_below, strict=True)).get(dimension)


def _shape_below(node: Any) -> tuple[int, ...]:
    below, output = node.next_functions[0]
    return () if below is None else shape_of(below, output)
