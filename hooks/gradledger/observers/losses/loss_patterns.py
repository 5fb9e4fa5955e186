"""Recognises a loss at a node: a loss of PyTorch, or nodes that together are a cross entropy."""

from __future__ import annotations

import math
from typing import Any

import torch

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
    CTC_LOSS,
    CTC_LOSSES,
    DIVERGENCE,
    JOINS,
    LOG_SOFTMAX,
    LOGSUMEXP,
    LOSS_NODES,
    PARAMETER,
    PICKS,
    PRODUCTS,
    PROJECTIONS,
    REDUCTIONS,
    RESHAPES,
    SMOOTHING,
    SOFT_CROSS_ENTROPY,
    WEIGHT_NORM,
)
from gradledger.observers.losses.saved_hooks import saved

MOST_ABOVE_PRODUCT = 6  # nodes between a root and a product that it adds up

# Between a log_softmax and a pick, or a pick and the rest.
_SHIFTS = RESHAPES | {"SliceBackward0", "SelectBackward0"}
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


def loss_at(node: Any, name: str, path: GraphPath) -> LossNode | None:
    """The loss that this node is, if it is one."""
    if name in LOSS_NODES or (name in PICKS and _picks_log_probabilities(node)):
        return LossNode(node, CTC_LOSS if name in CTC_LOSSES else name, path)
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
    """The source of the logits of a cross entropy, a CTC loss or a divergence, and their node.

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
    named = (CTC_LOSS, *PICKS, SOFT_CROSS_ENTROPY, SMOOTHING, DIVERGENCE)
    if not (node.name().startswith("NllLoss") or loss.name in named):
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
