"""What a cross entropy is computed from: the activation of its input, from the graph below it."""

from __future__ import annotations

from typing import Any

from gradledger.observers.losses.autograd_graph import is_only_scaled
from gradledger.observers.losses.found_losses import (
    UNKNOWN,
    LossNode,
    output_count,
    shape_of,
    signed,
)
from gradledger.observers.losses.loss_patterns import parameter_of
from gradledger.observers.losses.node_names import PASSED_ON_IN_ORDER, PROJECTIONS, RESHAPES
from gradledger.observers.losses.saved_hooks import saved

FIRST_MICRO_BATCHES = 16  # in which inputs are read
DEPTH = 24  # nodes between a loss and the activation
# Activations that a loss function expects in its input, or applies.
_ACTIVATIONS = {
    "LogSoftmaxBackward0": "log_softmax",
    "SoftmaxBackward0": "softmax",
    "SigmoidBackward0": "sigmoid",
}
_CHOICES = frozenset({"IndexBackward0", "SelectBackward0", "SliceBackward0"})


def input_of(loss: LossNode, root: Any = None) -> str | None:
    """What a cross entropy is computed from, as ``log_softmax(softmax)``; None of other losses.

    ``linear``: the output of a layer, without an activation. ``other``: of anything else. So is an
    ``nll_loss`` of a softmax or a layer, unless it is all that ``root`` computes: it may be one
    part of a correct loss. None, too, if the input has no graph: the targets may have one.
    """
    if loss.hidden or loss.compiled is not None or loss.elements is not None:
        return None
    node = loss.smoothed or loss.node
    is_nll = node.name().startswith("NllLoss")
    if not is_nll and not node.name().startswith("BinaryCrossEntropyWithLogits"):
        return None
    name, below = _activation_below(node)
    if name != "log_softmax":
        return name if not is_nll or name is None or _is_all(loss, root) else "other"
    inner, activation = _activation_below(below)
    if inner not in ("softmax", "sigmoid"):
        return name
    if inner == "softmax" and not _are_of_one_axis(below, activation):
        return name
    return f"{name}({inner})"


def _is_all(loss: LossNode, root: Any) -> bool:
    """Whether a root is this loss, unweighted, or divided: nothing is added or multiplied."""
    if root is None or loss.path.factors or saved(loss.node, "weight") is not None:
        return False
    return is_only_scaled(root, loss.node)


def _activation_below(node: Any) -> tuple[str | None, Any]:
    """The next activation below a node, and its node; no name if the input has no graph."""
    output = 0
    for _ in range(DEPTH):
        node, output = _input_below(node, output)
        name = "" if node is None else node.name()
        if name in _ACTIVATIONS:
            return _ACTIVATIONS[name], node
        if name not in RESHAPES and name not in _CHOICES and name not in PASSED_ON_IN_ORDER:
            is_layer = name in PROJECTIONS and parameter_of(node) is not None
            return ("linear" if is_layer else "other" if name else None), node
    return "other", node


def _input_below(node: Any, output: int) -> tuple[Any, int]:
    """The first input of a node, or the one that it returns as this output."""
    inputs = node.next_functions
    if node.name() not in PASSED_ON_IN_ORDER:
        output = 0
    elif len(inputs) != output_count(node):
        return None, 0
    return inputs[output] if output < len(inputs) else (None, 0)


def _are_of_one_axis(log_softmax: Any, softmax: Any) -> bool:
    """Whether two softmaxes are over the same classes, as the shapes show."""
    shapes = [shape_of(node) for node in (log_softmax, softmax)]
    if UNKNOWN in shapes or not all(shapes):
        return False
    (_, upper), (classes, lower) = (
        (shape[axis], axis - len(shape))
        for node, shape in zip((log_softmax, softmax), shapes, strict=True)
        for axis in (signed([node._saved_dim])[0] % len(shape),)
    )
    if shapes[0][upper] != classes:
        return False
    if shapes[1].count(classes) == 1:
        return True
    # another axis has this length, as of a square matrix
    node, output = log_softmax, 0
    while node is not softmax:
        node, output = _input_below(node, output)
        if node.name() in ("TransposeBackward0", "PermuteBackward0"):
            return False
    return upper == lower
