"""Tells how many samples stand behind a flat row of targets, from the graph below a cross entropy.

A classifier's row is a sample, a language model's is a token of one. Between the loss and the
model's input, the graph shows which: where a batch of sequences was flattened, where an image was,
or that nothing was. Only shapes and names are read; where they prove nothing, nothing is said.
"""

from __future__ import annotations

import math
from typing import Any

MAX_NODES = 32
_IMAGE = 4  # dimensions: samples, channels, height, width

_FLATTENS = frozenset({"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})
# What keeps rows apart: a network of these alone was given as many rows as it gave.
_ROW_BY_ROW = frozenset(
    {"NllLossBackward0", "LogSoftmaxBackward0", "AddmmBackward0", "MmBackward0", "ToCopyBackward0"}
    | {"TanhBackward0", "ReluBackward0", "GeluBackward0", "SiluBackward0", "SigmoidBackward0"}
    | {"LeakyReluBackward0", "EluBackward0", "NativeLayerNormBackward0", "NativeBatchNormBackward0"}
    | {"NativeDropoutBackward0"}
)
_PARAMETERS = frozenset({"torch::autograd::AccumulateGrad", "TBackward0"})


def samples_behind(loss: Any, rows: int) -> int | None:
    """Samples in a flat row of so many targets; None where the graph does not prove it."""
    node, row_by_row = loss, True
    for _ in range(MAX_NODES):
        name = node.name()
        if name in _FLATTENS:
            flattened = _before_flattening(node, rows)
            if flattened is not None:
                return flattened
        elif name == "ConvolutionBackward0":
            shape = tuple(node._input_metadata[0].shape)
            return rows if shape[0] == rows else None
        row_by_row = row_by_row and name in _ROW_BY_ROW
        below = _input_of(node)
        if below is None:
            return rows if row_by_row else None
        node = below
    return None


def _before_flattening(node: Any, rows: int) -> int | None:
    """The first dimension of sequences made into rows, or of images made into vectors."""
    shape = tuple(int(size) for size in node._saved_self_sym_sizes)
    if len(shape) >= 3 and shape[0] < rows and math.prod(shape[:-1]) == rows:
        return shape[0]
    return rows if len(shape) >= _IMAGE and shape[0] == rows else None


def _input_of(node: Any) -> Any:
    """What the node worked on, other than parameters; None at the model's own input."""
    for below, _ in node.next_functions:
        if below is not None and below.name() not in _PARAMETERS:
            return below
    return None
