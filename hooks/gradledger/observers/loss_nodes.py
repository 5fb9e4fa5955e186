"""Reads what a loss node saved: how it reduces, and over how many tokens.

All private ``_saved_*`` and ``_raw_saved_*`` attributes of PyTorch are read here and nowhere else.
A value that a saved-tensor hook holds (activation checkpointing, offloading) is never read:
unpacking it would run the forward again and break the user's backward.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gradledger.deferred import Deferred
from gradledger.ledger import OpenTerm
from gradledger.observers.loss_graph import REDUCTIONS, Found
from gradledger.records import Reduction

_REDUCTION_NAMES: tuple[Reduction, ...] = ("none", "mean", "sum")
_HALF = (torch.float16, torch.bfloat16)
_HIDDEN = "the tensor saved for the loss is held by a saved-tensor hook (checkpointing)"


def open_term(found: Found) -> OpenTerm:
    """What is known of the loss node before backward reaches it."""
    node = found.smoothed or found.node
    if found.name in REDUCTIONS:
        term = _of_reduction(node, found.name)
    elif found.name.startswith("NllLoss"):
        term = _of_nll(node, found.name)
    elif hasattr(node, "_saved_reduction"):
        term = _of_elementwise(node, found.name)
    else:
        term = OpenTerm(found.name, "none")
    term.undivided, term.coefficient = not found.path.divided, found.path.coefficient
    return term


def watch_upstream(found: Found, term: OpenTerm) -> Any:
    """Catch the gradient that arrives at the node; returns the handle to remove afterwards."""
    valid = _valid_mask(found.smoothed or found.node) if term.reduction == "none" else None

    def arrived(grads: tuple[Any, ...]) -> None:
        gradient = grads[0]
        if gradient is None:
            return
        vector = term.reduction == "none"
        term.upstream = Deferred(_summary(gradient, valid) if vector else gradient)

    return found.node.register_prehook(arrived)


def target_of(node: Any) -> torch.Tensor | None:
    """The loss node's targets, or what picks its tokens; None when they cannot be read."""
    target = _saved(node, "target")
    return target if target is not None else _saved(node, "index")


def _summary(gradient: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """[tokens that count, total weight, least and most |weight|] of a vector of weights."""
    weights = gradient.detach().double() if gradient.device.type != "mps" else gradient.detach()
    counted = weights != 0
    if valid is not None and valid.shape == counted.shape:
        counted = counted & valid
    size = weights.abs()
    least = torch.where(counted, size, math.inf).min()
    most = torch.where(counted, size, 0.0).max()
    total = torch.where(counted, weights, 0.0).sum()
    return torch.stack([counted.sum().to(total.dtype), total, least, most])


def _of_nll(node: Any, name: str) -> OpenTerm:
    reduction = _REDUCTION_NAMES[node._saved_reduction]
    term = OpenTerm(name, reduction)
    target = _saved(node, "target")
    if target is not None:
        term.size, term.rows = target.numel(), target.shape[0] if target.dim() else 1
    if reduction == "none":
        return term
    divisor, weighted = _saved(node, "total_weight"), _has_class_weights(node)
    if weighted and divisor is not None:
        term.class_weight = Deferred(divisor)
    if divisor is not None and not weighted and divisor.dtype not in _HALF:
        term.tokens = Deferred(divisor)
    elif target is not None:
        # total_weight is no count when classes are weighted, and is rounded in half precision
        term.tokens = Deferred((target != _ignored(node)).sum())
    else:
        term.missing["tokens"] = _HIDDEN
    return term


def _of_elementwise(node: Any, name: str) -> OpenTerm:
    term = OpenTerm(name, _REDUCTION_NAMES[node._saved_reduction])
    target = _saved(node, "target")
    if target is None:
        target = _saved(node, "self")
    if target is None:
        term.missing["tokens"] = _HIDDEN
    else:
        _count_elements(term, tuple(target.shape))
    return term


def _of_reduction(node: Any, name: str) -> OpenTerm:
    term = OpenTerm(name, REDUCTIONS[name])
    shape = tuple(int(s) for s in node._saved_self_sym_sizes)
    if name == "MeanBackward1" and math.prod(shape[d] for d in node._saved_dim) != math.prod(shape):
        return OpenTerm(name, "none")  # a mean over some dimensions leaves a vector of tokens
    _count_elements(term, shape)
    return term


def _count_elements(term: OpenTerm, shape: tuple[int, ...]) -> None:
    term.tokens = term.size = math.prod(shape)
    term.rows = shape[0] if shape else 1
    term.positions = math.prod(shape[:-1])


def _valid_mask(node: Any) -> torch.Tensor | None:
    if not hasattr(node, "_saved_ignore_index"):
        return None
    target = _saved(node, "target")
    return None if target is None else target != _ignored(node)


def _has_class_weights(node: Any) -> bool:
    return _saved(node, "weight") is not None


def _ignored(node: Any) -> int:
    """The ignored class; PyTorch hands the signed number out as an unsigned one."""
    index = int(node._saved_ignore_index)
    return index - 2**64 if index >= 2**63 else index


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """The saved tensor, or None when reading it would call somebody's unpack hook."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", None) is not None:
        return None
    value: torch.Tensor | None = getattr(node, f"_saved_{name}", None)
    return value
