"""Parts of a loss that have no gradient: numbers and detached tensors that are added to it.

In the graph, such a part is an addition with an input that is missing. How large it is follows from
the rest: the losses that are in the graph are computed again from what their nodes saved, and
weighed by the gradient that arrives at them. This is done in the first micro-batches only, and only
where an addition lacks an input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from gradledger.capture.async_copy import Deferred
from gradledger.observers.losses.found_losses import Elements, LossNode
from gradledger.observers.losses.loss_nodes import REDUCTION_NAMES, ignored_class
from gradledger.observers.losses.node_names import ADDITIONS, JOINS, REDUCTIONS, RESHAPES, SCALINGS
from gradledger.observers.losses.saved_hooks import saved
from gradledger.observers.losses_out_of_sight.calls import call_of

FIRST_MICRO_BATCHES = 16
MOST_NODES = 64
MOST_ELEMENTS = 2**22  # a loss over more is not computed again: it may take memory for each
ABSOLUTE, SQUARE = "AbsBackward0", 2
_REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # over all elements
    "MeanBackward0": torch.Tensor.mean,
    "SumBackward0": torch.Tensor.sum,
}
_ABOVE_LOSSES = ADDITIONS | JOINS | RESHAPES | SCALINGS | frozenset(REDUCTIONS)


def only_numbers_are_added(root: Any, losses: list[LossNode]) -> bool:
    """Whether something is added to these losses below ``root``, none of which has a gradient.

    Not if anything else that has one is added to them: how large that is, is not known.
    """
    ends = {loss.node for loss in losses}
    queue, visited, missing = [root], {root}, False
    while queue:
        node = queue.pop()
        if node in ends:
            continue
        name = node.name()
        if name not in _ABOVE_LOSSES or len(visited) > MOST_NODES:
            return False
        for below, _ in node.next_functions:
            if below is None:
                missing = missing or name in ADDITIONS or name in JOINS
            elif below not in visited:
                visited.add(below)
                queue.append(below)
    return missing


def value_of(loss: LossNode) -> Deferred | None:
    """The value of a loss, from what its node saved; None if it cannot be computed."""
    if loss.elements is not None and not loss.penalty:
        return _of_elements(loss, loss.elements)
    compute = _COMPUTE.get(loss.name)
    derived = (loss.smoothed, loss.reduction, loss.elements, loss.compiled, call_of(loss.node))
    if compute is None or loss.hidden or any(each is not None for each in derived):
        return None
    node = loss.node
    reduction = REDUCTION_NAMES[node._saved_reduction]
    inputs, target = saved(node, "self"), saved(node, "target")
    if reduction == "none" or inputs is None or target is None:
        return None
    if inputs.numel() > MOST_ELEMENTS and not loss.name.startswith("NllLoss"):
        return None
    with torch.no_grad():
        return Deferred(compute(node, inputs, target, reduction))


def _of_elements(loss: LossNode, elements: Elements) -> Deferred | None:
    """A mean or sum over absolute values or squares, as ``l1_loss`` is in the graph."""
    node, reduce = loss.node, _REDUCE.get(loss.name)
    if not elements.uniform or reduce is None or loss.reduction.next_functions[0][0] is not node:
        return None
    inputs, name = saved(node, "self"), node.name()
    is_square = name == "PowBackward0" and getattr(node, "_saved_exponent", None) == SQUARE
    if inputs is None or inputs.numel() > MOST_ELEMENTS or not (is_square or name == ABSOLUTE):
        return None
    with torch.no_grad():
        return Deferred(reduce(inputs.square() if is_square else inputs.abs()))


def _nll(node: Any, inputs: Any, target: Any, reduction: str) -> torch.Tensor:
    weight, ignored = saved(node, "weight"), ignored_class(node)
    return F.nll_loss(inputs, target, weight, ignore_index=ignored, reduction=reduction)


def _mse(node: Any, inputs: Any, target: Any, reduction: str) -> torch.Tensor:
    return F.mse_loss(inputs, target, reduction=reduction)


def _smooth_l1(node: Any, inputs: Any, target: Any, reduction: str) -> torch.Tensor:
    return F.smooth_l1_loss(inputs, target, reduction=reduction, beta=node._saved_beta)


def _bce(node: Any, inputs: Any, target: Any, reduction: str) -> torch.Tensor:
    return F.binary_cross_entropy(inputs, target, saved(node, "weight"), reduction=reduction)


def _bce_with_logits(node: Any, inputs: Any, target: Any, reduction: str) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(
        inputs,
        target,
        saved(node, "weight"),
        pos_weight=saved(node, "pos_weight"),
        reduction=reduction,
    )


_COMPUTE: dict[str, Callable[[Any, Any, Any, str], torch.Tensor]] = {
    "NllLossBackward0": _nll,
    "NllLoss2DBackward0": _nll,
    "MseLossBackward0": _mse,
    "SmoothL1LossBackward0": _smooth_l1,
    "BinaryCrossEntropyBackward0": _bce,
    "BinaryCrossEntropyWithLogitsBackward0": _bce_with_logits,
}
