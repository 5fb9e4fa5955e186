"""Reads what a loss node saved: how it reduces, and over how many tokens.

All private ``_saved_*`` and ``_raw_saved_*`` attributes of PyTorch are read here and nowhere else.
A value that a saved-tensor hook holds (activation checkpointing, offloading) is never read:
unpacking it would run the forward again and break the user's backward.
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
    Found,
    has_unpack_hook,
    signed,
    soft_target_side,
)
from gradledger.observers.losses.sample_counts import samples_behind
from gradledger.records import Reduction

_REDUCTION_NAMES: tuple[Reduction, ...] = ("none", "mean", "sum")
_HIDDEN_WEIGHTS = "the loss's class weights are held by a saved-tensor hook"
_HIDDEN = "the tensor saved for the loss is held by a saved-tensor hook (checkpointing)"


@dataclass(frozen=True)
class Declared:
    """What a script says of a loss that cannot be seen: ``scale`` times the mean or sum."""

    KIND: ClassVar = "declared"
    tokens: Deferred | int
    reduction: Literal["mean", "sum"]
    scale: float = 1.0


def open_term(found: Found) -> OpenTerm:
    """What is known of the loss node before backward reaches it."""
    node = found.smoothed or found.node
    if found.name.startswith("NllLoss"):
        term = _of_nll(node, found.name)
    elif found.name == SOFT_CROSS_ENTROPY:
        term = _of_soft(node)
    elif found.name in REDUCTIONS:
        term = _of_reduction(node, found.name)
    elif hasattr(node, "_saved_reduction"):
        term = _of_elementwise(node, found.name)
    else:
        term = OpenTerm(found.name, "none", target=_picked(node))
    term.undivided, term.coefficient = not found.path.divided, found.path.coefficient
    return term


Hook = Callable[..., None]
Guarded = Callable[[Hook], Hook]  # makes a hook that can do the script no harm


def watch_upstream(
    found: Found, term: OpenTerm, lent: bool, guarded: Guarded
) -> list[Callable[[], None]]:
    """Catch the gradient that arrives at the node; returns what ends the watch.

    ``lent`` says that it may be the script's own tensor, so that it must be copied.
    """
    node = found.smoothed or found.node
    if term.reduction == "none" or term.tokens is None or isinstance(node, BackwardCFunction):
        return _watch_both_sides(found, term, guarded)

    def before(grads: tuple[Any, ...]) -> None:
        if grads[0] is not None:
            term.upstream = Deferred(grads[0], volatile=lent)

    return [found.node.register_prehook(guarded(before)).remove]


def _watch_both_sides(found: Found, term: OpenTerm, guarded: Guarded) -> list[Callable[[], None]]:
    """Watch a loss of many weights, or one whose tokens are not known yet.

    Where the node's targets are hidden, or known to a custom function alone, the gradient that
    leaves the node tells which tokens count: those that it is not zero for.
    """
    node = found.smoothed or found.node
    vector, custom = term.reduction == "none", isinstance(node, BackwardCFunction)
    valid = _valid_mask(node) if vector else None
    arrived: list[torch.Tensor] = []

    def before(grads: tuple[Any, ...]) -> None:
        gradient = next((g for g in grads if g is not None), None)
        if gradient is None:
            return
        if custom:
            arrived.append(gradient.detach().clone())  # theirs to change in place
        if vector:
            term.upstream = Deferred(_summary(gradient, valid))
        else:
            term.upstream = Deferred(gradient, volatile=True)

    def after(gradients: tuple[Any, ...], _: Any) -> None:
        left = next((g for g in gradients if g is not None), None)
        if left is None:
            return
        if custom:
            _count_rows(term, arrived, left)
        else:
            _count_left(term, left)

    undo = [found.node.register_prehook(guarded(before)).remove]
    if custom or (term.tokens is None and term.missing.get("tokens") == _HIDDEN):
        undo.append(node.register_hook(guarded(after)).remove)
    return undo


def watch_declared(
    node: Any, output: int, term: OpenTerm, scale: float, guarded: Guarded
) -> Callable[[], None]:
    """Catch what arrives at one output of the node that a declaration speaks of."""

    def before(grads: tuple[Any, ...]) -> None:
        if grads[output] is not None:
            term.upstream = Deferred(grads[output].detach() * scale)

    undo: Callable[[], None] = node.register_prehook(guarded(before)).remove
    return undo


def _count_rows(term: OpenTerm, arrived: list[torch.Tensor], left: torch.Tensor) -> None:
    """A custom function's tokens: rows of its input that got a gradient; the rest it ignored."""
    losses = arrived.pop() if arrived else left
    exact = left.dtype != torch.float16  # where a small gradient may have become zero
    if exact and left.dim() and losses.numel() and left.numel() % losses.numel() == 0:
        rows = left.detach().reshape(losses.numel(), -1)
        used = torch.linalg.vector_norm(rows, math.inf, dim=1).reshape(losses.shape) != 0
        term.upstream = Deferred(_summary(losses, used))


def _count_left(term: OpenTerm, left: torch.Tensor) -> None:
    """Tokens of a loss whose targets are hidden: a cross entropy has one gradient for each."""
    term.missing.pop("tokens", None)
    if term.reduction == "none":
        return
    if term.kind.startswith("NllLoss"):
        term.tokens = Deferred(torch.count_nonzero(left.detach()))
    else:
        _count_elements(term, tuple(left.shape))


def _picked(node: Any) -> torch.Tensor | None:
    """The targets of a loss written by hand or by a user's function, where it saved them."""
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
    term = OpenTerm(name, _REDUCTION_NAMES[node._saved_reduction])
    term.target = target = _saved(node, "target")
    if target is None:
        if term.reduction != "none":
            weighted = _is_hidden(node, "weight")
            term.missing["tokens"] = _HIDDEN_WEIGHTS if weighted else _HIDDEN
        return term
    term.size, term.rows = target.numel(), target.shape[0] if target.dim() else 1
    if target.dim() == 1 and term.rows > 1:
        term.samples = samples_behind(node, term.rows)
    if term.reduction == "none":
        return term
    # what holds one tensor of a node holds all, so these are as free to read as the targets
    divisor, weighted = node._saved_total_weight, node._saved_weight is not None
    if weighted:
        term.class_weight = Deferred(divisor)
    if weighted or divisor.dtype in HALF:
        # it is no count when classes are weighted, and is rounded in half precision
        term.tokens = Deferred((target != _ignored(node)).sum())
    else:
        term.tokens = Deferred(divisor)
    return term


def _of_soft(node: Any) -> OpenTerm:
    """A cross entropy against probabilities; rows whose probabilities are all zero do not count."""
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


def _of_elementwise(node: Any, name: str) -> OpenTerm:
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


def _of_reduction(node: Any, name: str) -> OpenTerm:
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
    """Whether somebody's unpack hook stands between us and a saved tensor."""
    raw = getattr(node, "_raw_saved_" + name, None)
    return raw is not None and has_unpack_hook(raw)


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """The saved tensor; None where there is none that can be read, or where reading it would call
    somebody's unpack hook."""
    raw = getattr(node, "_raw_saved_" + name, None)
    if raw is None or has_unpack_hook(raw):
        return None
    value: torch.Tensor | None = getattr(node, "_saved_" + name, None)
    return value if value is None or is_plain(value) else None
