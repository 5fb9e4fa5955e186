"""Reads the saved tensors of a loss node: its reduction, and the number of tokens.

A value that a saved-tensor hook holds (activation checkpointing, offloading) is never read:
unpacking it would run the forward again, and break the script's backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch.autograd.function import BackwardCFunction

from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain
from gradledger.capture.open_records import HALF, OpenTerm
from gradledger.observers.losses.autograd_graph import (
    REDUCTIONS,
    SOFT_CROSS_ENTROPY,
    LossNode,
    signed,
    soft_target_side,
)
from gradledger.observers.losses.sample_counts import sample_count
from gradledger.observers.losses.saved_hooks import has_unpack_hook
from gradledger.records import Reduction

_REDUCTION_NAMES: tuple[Reduction, ...] = ("none", "mean", "sum")
_HIDDEN_WEIGHTS = "the loss's class weights are held by a saved-tensor hook"
_HIDDEN = "the tensor saved for the loss is held by a saved-tensor hook (checkpointing)"


@dataclass(frozen=True)
class DeclaredLoss:
    """The script's declaration of a loss that is not visible: ``scale`` times the mean or sum."""

    KIND: ClassVar = "declared"
    tokens: Deferred | int
    reduction: Literal["mean", "sum"]
    scale: float = 1.0


def open_term(loss: LossNode) -> OpenTerm:
    """The loss term as far as it is known before backward reaches the loss node."""
    node = loss.smoothed or loss.node
    if loss.name.startswith("NllLoss"):
        term = _nll_term(node, loss.name)
    elif loss.name == SOFT_CROSS_ENTROPY:
        term = _soft_term(node)
    elif loss.name in REDUCTIONS:
        term = _reduction_term(node, loss.name)
    elif hasattr(node, "_saved_reduction"):
        term = _elementwise_term(node, loss.name)
    else:
        term = OpenTerm(loss.name, "none", target=_saved_target(node))
    term.undivided, term.coefficient = not loss.path.divided, loss.path.coefficient
    return term


Hook = Callable[..., None]
GuardHook = Callable[[Hook], Hook]  # returns a hook whose failures the script never sees


def watch_upstream(
    loss: LossNode, term: OpenTerm, has_grad_tensors: bool, guard_hook: GuardHook
) -> list[Callable[[], None]]:
    """Read the gradient that arrives at the node. Returns functions that remove the hooks.

    ``has_grad_tensors``: the gradient may be the caller's own tensor, so it must be copied.
    """
    node = loss.smoothed or loss.node
    if term.reduction == "none" or term.tokens is None or isinstance(node, BackwardCFunction):
        return _watch_both_sides(loss, term, guard_hook)

    def before(grads: tuple[Any, ...]) -> None:
        if grads[0] is not None:
            term.upstream = Deferred(grads[0], volatile=has_grad_tensors)

    return [loss.node.register_prehook(guard_hook(before)).remove]


def _watch_both_sides(
    loss: LossNode, term: OpenTerm, guard_hook: GuardHook
) -> list[Callable[[], None]]:
    """Read the gradients at a loss with one weight per token, or whose tokens are not known yet.

    If the node's targets are hidden, or only a custom function has them, the gradient that leaves
    the node shows which tokens count: those whose gradient is not zero.
    """
    node = loss.smoothed or loss.node
    vector, custom = term.reduction == "none", isinstance(node, BackwardCFunction)
    valid = _valid_mask(node) if vector else None
    arrived: list[torch.Tensor] = []

    def before(grads: tuple[Any, ...]) -> None:
        gradient = next((g for g in grads if g is not None), None)
        if gradient is None:
            return
        if custom:
            arrived.append(gradient.detach().clone())  # the function may change it in place
        if vector:
            term.upstream = Deferred(_summary(gradient, valid))
        else:
            term.upstream = Deferred(gradient, volatile=True)

    def after(gradients: tuple[Any, ...], _: Any) -> None:
        outgoing = next((g for g in gradients if g is not None), None)
        if outgoing is None:
            return
        if custom:
            _count_rows(term, arrived, outgoing)
        else:
            _count_outgoing(term, outgoing)

    undo = [loss.node.register_prehook(guard_hook(before)).remove]
    if custom or (term.tokens is None and term.missing.get("tokens") == _HIDDEN):
        undo.append(node.register_hook(guard_hook(after)).remove)
    return undo


def watch_declared(
    node: Any, output: int, term: OpenTerm, scale: float, guard_hook: GuardHook
) -> Callable[[], None]:
    """Read the gradient that arrives at one output of the node that a declaration describes."""

    def before(grads: tuple[Any, ...]) -> None:
        if grads[output] is not None:
            term.upstream = Deferred(grads[output].detach() * scale)

    undo: Callable[[], None] = node.register_prehook(guard_hook(before)).remove
    return undo


def _count_rows(term: OpenTerm, arrived: list[torch.Tensor], outgoing: torch.Tensor) -> None:
    """The tokens of a custom function: rows of its input with a gradient. It ignored the others."""
    losses = arrived.pop() if arrived else outgoing
    exact = outgoing.dtype != torch.float16  # there, a small gradient may underflow to zero
    if exact and outgoing.dim() and losses.numel() and outgoing.numel() % losses.numel() == 0:
        rows = outgoing.detach().reshape(losses.numel(), -1)
        used = torch.linalg.vector_norm(rows, math.inf, dim=1).reshape(losses.shape) != 0
        term.upstream = Deferred(_summary(losses, used))


def _count_outgoing(term: OpenTerm, outgoing: torch.Tensor) -> None:
    """The tokens of a loss whose targets are hidden: a cross entropy has a gradient per token."""
    term.missing.pop("tokens", None)
    if term.reduction == "none":
        return
    if term.kind.startswith("NllLoss"):
        term.tokens = Deferred(torch.count_nonzero(outgoing.detach()))
    else:
        _count_elements(term, tuple(outgoing.shape))


def _saved_target(node: Any) -> torch.Tensor | None:
    """The targets of a hand-written or custom loss, if its node saved them."""
    target = _saved(node, "target")
    return target if target is not None else _saved(node, "index")


def _summary(gradient: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """[tokens that count, total weight, least |weight|, most |weight|] of a vector of weights."""
    weights = gradient.detach().double() if gradient.device.type != "mps" else gradient.detach()
    counted = weights != 0
    if valid is not None and valid.shape == counted.shape:
        counted = counted & valid
    size = weights.abs()
    if not size.numel():
        return torch.tensor([0.0, 0.0, math.inf, 0.0], dtype=weights.dtype, device=weights.device)
    least = torch.where(counted, size, math.inf).min()
    most = torch.where(counted, size, 0.0).max()
    total = torch.where(counted, weights, 0.0).sum()
    return torch.stack([counted.sum().to(total.dtype), total, least, most])


def _nll_term(node: Any, name: str) -> OpenTerm:
    term = OpenTerm(name, _REDUCTION_NAMES[node._saved_reduction])
    term.target = target = _saved(node, "target")
    if target is None:
        if term.reduction != "none":
            weighted = _is_hidden(node, "weight")
            term.missing["tokens"] = _HIDDEN_WEIGHTS if weighted else _HIDDEN
        return term
    term.size, term.rows = target.numel(), target.shape[0] if target.dim() else 1
    if target.dim() == 1 and term.rows > 1:
        term.samples = sample_count(node, term.rows)
    if term.reduction == "none":
        return term
    # A saved-tensor hook holds all tensors of a node or none: these can be read, too.
    divisor, weighted = node._saved_total_weight, node._saved_weight is not None
    if weighted:
        term.class_weight = Deferred(divisor)
    if weighted or divisor.dtype in HALF:
        # The divisor is no count if classes are weighted, and is rounded in half precision.
        term.tokens = Deferred((target != _ignored(node)).sum())
    else:
        term.tokens = Deferred(divisor)
    return term


def _soft_term(node: Any) -> OpenTerm:
    """A cross entropy against probabilities. Rows whose probabilities are all zero do not count."""
    product, side = node.next_functions[0][0], soft_target_side(node)
    whole = node.name() == "SumBackward0"
    shape = tuple(int(s) for s in node._saved_self_sym_sizes)
    logs = product.next_functions[1 - (side or 0)][0]
    classes = signed([logs._saved_dim])[0] % len(shape)
    term = OpenTerm(SOFT_CROSS_ENTROPY, "sum" if whole else "none")
    if whole:
        target = _saved(product, "other" if side else "self")
        if target is None or tuple(target.shape) != shape:
            term.tokens = math.prod(shape) // shape[classes]
        else:
            term.tokens = Deferred((target.detach().amax(classes) != 0).sum())
        term.size, term.rows = math.prod(shape) // shape[classes], shape[0]
    return term


def _elementwise_term(node: Any, name: str) -> OpenTerm:
    term = OpenTerm(name, _REDUCTION_NAMES[node._saved_reduction])
    target = _saved(node, "target")
    term.target = target
    if target is None:
        target = _saved(node, "self")
    if target is None:
        term.missing["tokens"] = _HIDDEN
    else:
        _count_elements(term, tuple(target.shape))
    return term


def _reduction_term(node: Any, name: str) -> OpenTerm:
    term = OpenTerm(name, REDUCTIONS[name])
    shape = tuple(int(s) for s in node._saved_self_sym_sizes)
    over = [shape[d] for d in signed(getattr(node, "_saved_dim", ()))] or shape
    if math.prod(over) != math.prod(shape):
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


def _ignored(node: Any) -> int:
    """The ignored class."""
    return signed([node._saved_ignore_index])[0]


def _is_hidden(node: Any, name: str) -> bool:
    """Whether a saved-tensor hook holds a saved tensor."""
    raw = getattr(node, "_raw_saved_" + name, None)
    return raw is not None and has_unpack_hook(node, raw)


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """The saved tensor; None if there is none that can be read, or a saved-tensor hook holds it."""
    raw = getattr(node, "_raw_saved_" + name, None)
    if raw is None or has_unpack_hook(node, raw):
        return None
    value: torch.Tensor | None = getattr(node, "_saved_" + name, None)
    return value if value is None or is_plain(value) else None
