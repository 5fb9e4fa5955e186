"""Counts the samples behind a loss, from the graph below it: those of a flat vector of targets, and
those that each element of a statistic averages.

One target of a classifier is one sample; one target of a language model is one token of a sample.
The graph between the loss and the model's input shows which: a batch of sequences was flattened,
an image was, or nothing was. Only shapes and names are read. If they prove nothing, the number of
samples is not measured.
"""

from __future__ import annotations

import math
from typing import Any

from gradledger.observers.losses.found_losses import graph_inputs, signed
from gradledger.observers.losses.node_names import MODEL_NODES, PASSED_ON

MAX_NODES = 32
MATRIX = 2  # dimensions
_IMAGE = 4  # dimensions: samples, channels, height, width

_FLATTENS = frozenset({"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})
# Nodes that keep rows apart: a network of only these has as many rows of input as of output.
_ROW_BY_ROW = frozenset(
    {"NllLossBackward0", "LogSoftmaxBackward0", "AddmmBackward0", "MmBackward0", "ToCopyBackward0"}
    | {"TanhBackward0", "ReluBackward0", "GeluBackward0", "SiluBackward0", "SigmoidBackward0"}
    | {"LeakyReluBackward0", "EluBackward0", "NativeLayerNormBackward0", "NativeBatchNormBackward0"}
    | {"NativeDropoutBackward0", "NegBackward0", "PowBackward0"}
    | {"CdistBackward0", "EuclideanDistBackward0"}
)
# Means over single dimensions, and functions of means.
_AVERAGES = frozenset({"MeanBackward1", "VarBackward0", "StdBackward0"})
MOST_ABOVE_AVERAGES = 12  # nodes between the elements of a loss and the means
_PARAMETERS = frozenset({"torch::autograd::AccumulateGrad", "TBackward0"})


def sample_count(loss: Any, rows: int) -> int | None:
    """Samples behind ``rows`` flat targets; None if the graph does not prove their number."""
    node, row_by_row = loss, True
    for _ in range(MAX_NODES):
        name = node.name()
        keeps_rows = name in _ROW_BY_ROW or name == PASSED_ON
        if name in _FLATTENS:
            flattened = _before_flattening(node, rows)
            if flattened is not None:
                return flattened
            shape = tuple(node._saved_self_sym_sizes)
            keeps_rows = len(shape) == MATRIX and shape[0] == rows  # as after a distance
        elif name == "ConvolutionBackward0":
            shape = tuple(node._input_metadata[0].shape)
            return rows if shape[0] == rows else None
        elif name == PASSED_ON and len(node.next_functions) > 1:
            return None  # of several outputs, which one is not known
        row_by_row = row_by_row and keeps_rows
        below = _input_of(node)
        if below is None:
            return rows if row_by_row else None
        node = below
    return None


def _before_flattening(node: Any, rows: int) -> int | None:
    """The first dimension of flattened sequences, or of images flattened to vectors."""
    shape = tuple(int(size) for size in node._saved_self_sym_sizes)
    if len(shape) >= 3 and shape[0] < rows and math.prod(shape[:-1]) == rows:
        return shape[0]
    return rows if len(shape) >= _IMAGE and shape[0] == rows else None


def _input_of(node: Any) -> Any:
    """The node's input that is not a parameter; None at the model's input."""
    for below, _ in node.next_functions:
        if below is not None and below.name() not in _PARAMETERS:
            return below
    return None


def averaged_rows(node: Any, shape: tuple[int, ...]) -> int | None:
    """The rows of which the elements that ``node`` computes are functions of the mean.

    As the load of each expert is, of a router. None if an element is computed from anything else.
    """
    counts: set[int] = set()
    stack, visited = [node], {node}
    while stack:
        current = stack.pop()
        if current.name() in _AVERAGES:
            counts.add(_rows_of_average(current))
            continue
        below = graph_inputs(current)
        apart = any(edge.shape != shape for _, edge in below)
        if not below or apart or current.name() in MODEL_NODES:
            return None
        new = {edge.node for _, edge in below} - visited
        visited |= new
        stack += new
        if len(visited) > MOST_ABOVE_AVERAGES:
            return None
    return counts.pop() if len(counts) == 1 and 0 not in counts else None


def _rows_of_average(node: Any) -> int:
    """Over how many rows a node averages; 0 if it does not average over the first dimension.

    What is stacked, as the outputs of several models, is no row.
    """
    ((_, edge),) = graph_inputs(node)
    if edge.node.name() == "StackBackward0":
        return 0
    dims = {d % max(len(edge.shape), 1) for d in signed(node._saved_dim or ())}
    return math.prod(edge.shape[d] for d in dims) if 0 in dims else 0
