"""Reads the gradients that arrive at losses and at their elements: the weights.

The gradient of an element is read where the lowest linear node above it passes it down. At the
element itself it is the sum over all losses that use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from gradledger.capture.async_copy import Deferred
from gradledger.capture.open_terms import OpenTerm
from gradledger.observers.losses.found_losses import LossNode, Rows
from gradledger.observers.losses.loss_nodes import (
    HIDDEN,
    OF_TORCHSCRIPT,
    count_elements,
    counted_mask,
    hides_ignored,
)
from gradledger.observers.losses_compiled.terms import watch_compiled, weight_summary
from gradledger.observers.losses_out_of_sight.calls import call_of
from gradledger.observers.losses_out_of_sight.hidden import Inferred, data_input, watch_rows

FP16 = "in fp16, a token of a custom function may have no gradient"
_EVEN_ROW = 1e-6  # relative difference of entries that count as equal

Hook = Callable[..., None]
GuardHook = Callable[[Hook], Hook]  # returns a hook whose failures the script never sees


def watch_upstream(
    loss: LossNode, term: OpenTerm, has_grad_tensors: bool, guard_hook: GuardHook
) -> list[Callable[[], None]]:
    """Read the gradient that arrives at the loss. Returns functions that remove the hooks.

    ``has_grad_tensors``: the gradient may be the caller's own tensor, so it must be copied.
    """
    undo: list[Callable[[], None]] = []
    if term.missing.get("weight") == OF_TORCHSCRIPT:
        return undo
    if loss.path.function is not None:

        def at_function(grads: tuple[Any, ...]) -> None:
            gradient = next((g for g in grads if g is not None), None)
            if gradient is not None:
                term.function_upstream = Deferred(gradient, volatile=has_grad_tensors)

        undo.append(loss.path.function.register_prehook(guard_hook(at_function)).remove)
    if loss.compiled is not None:
        return undo + watch_compiled(loss.compiled, term, guard_hook)
    if loss.hidden:
        return undo + _watch_hidden(loss, term, guard_hook)
    if loss.reduction is not None:

        def at_reduction(grads: tuple[Any, ...]) -> None:
            if grads[0] is not None:
                term.element_upstream = Deferred(grads[0], volatile=has_grad_tensors)

        undo.append(loss.reduction.register_prehook(guard_hook(at_reduction)).remove)
        if term.uniform:
            return undo
    by_rows = loss.elements is None and _counts_by_rows(loss, term)
    if loss.elements is not None and loss.elements.rows is not None and loss.link is not None:
        return undo + _watch_rows(loss.link, loss.elements.rows, term, guard_hook)
    if loss.link is not None and not by_rows:
        return [*undo, _watch_link(loss.link, counted_mask(loss), term, guard_hook)]
    if term.reduction == "none" or term.tokens is None or by_rows:
        return undo + _watch_both_sides(loss, term, guard_hook)

    def before(grads: tuple[Any, ...]) -> None:
        if grads[0] is not None:
            term.upstream = Deferred(grads[0], volatile=has_grad_tensors)

    return [*undo, loss.node.register_prehook(guard_hook(before)).remove]


def _counts_by_rows(loss: LossNode, term: OpenTerm) -> bool:
    """Whether only the gradient that leaves the loss shows which of its tokens count."""
    if loss.name == "NllLossBackward0" and term.reduction == "none":
        return hides_ignored(loss)
    return isinstance(loss.node, BackwardCFunction) and call_of(loss.node) is None


def _watch_hidden(
    loss: LossNode, term: OpenTerm, guard_hook: GuardHook
) -> list[Callable[[], None]]:
    """Read the gradient at a function of a known library, or what an unknown one shows."""
    call = call_of(loss.node)
    if call is None:
        data = data_input(loss.node)
        if data is None or not isinstance(term.inferred, Inferred):
            return []
        return watch_rows(loss.node, data[0], term.inferred, guard_hook)
    if call.unknown is not None:
        return []
    scale = call.scale

    def before(grads: tuple[Any, ...]) -> None:
        if grads[0] is not None:
            term.upstream = Deferred(grads[0].detach() * scale)  # a copy, whatever comes later

    return [loss.node.register_prehook(guard_hook(before)).remove]


def _watch_link(
    link: tuple[Any, int], valid: torch.Tensor | None, term: OpenTerm, guard_hook: GuardHook
) -> Callable[[], None]:
    """Read the gradient that the lowest linear node passes down to the elements."""
    node, index = link

    def after(gradients: tuple[Any, ...], _: Any) -> None:
        gradient = gradients[index]
        if gradient is not None and gradient.layout is torch.strided:
            term.upstream = Deferred(weight_summary(gradient, valid))

    undo: Callable[[], None] = node.register_hook(guard_hook(after)).remove
    return undo


def _watch_rows(
    link: tuple[Any, int], rows: Rows, term: OpenTerm, guard_hook: GuardHook
) -> list[Callable[[], None]]:
    """Read the weights of the rows of a softmax.

    Where the row is multiplied by its targets, and all its entries have the same weight above
    that, it is this weight. Otherwise it is that of its entries together, because the targets of
    label smoothing add up to 1, or of the heaviest, if the entries are losses.

    A row whose entries all have no gradient does not count.
    """
    node, index = link
    arrived: list[tuple[torch.Tensor, torch.Tensor]] = []

    def at_product(grads: tuple[Any, ...]) -> None:
        if grads[0] is not None and grads[0].dim() > rows.dim:
            arrived.append(_extremes(grads[0], rows.dim))

    def after(gradients: tuple[Any, ...], _: Any) -> None:
        gradient, above = gradients[index], arrived.pop() if arrived else None
        if gradient is None or gradient.layout is not torch.strided:
            return
        least, most = _extremes(gradient, rows.dim)
        weights = torch.where(most > -least, most, least)
        if rows.sums:
            total = gradient.detach().sum(rows.dim)
            weights = torch.where(least * most >= 0, total, weights)  # else they may cancel
        if above is not None and above[0].shape == weights.shape:
            is_even = torch.isclose(*above, rtol=_EVEN_ROW, atol=0.0)
            weights = torch.where(is_even, above[0], weights)
        term.upstream = Deferred(weight_summary(weights, (least != 0) | (most != 0)))

    undo = [node.register_hook(guard_hook(after)).remove]
    if rows.product is not None:
        undo.append(rows.product.register_prehook(guard_hook(at_product)).remove)
    return undo


def _extremes(gradient: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest entry along a dimension."""
    entries = gradient.detach()
    if not entries.shape[dim]:
        return entries.sum(dim), entries.sum(dim)
    if not entries.stride(dim):  # expanded: all are equal
        return entries.select(dim, 0), entries.select(dim, 0)
    return entries.amin(dim), entries.amax(dim)


def _watch_both_sides(
    loss: LossNode, term: OpenTerm, guard_hook: GuardHook
) -> list[Callable[[], None]]:
    """Read the gradients at a loss with one weight per token, or whose tokens are not known yet.

    If the node's targets are hidden, or only a custom function has them, the gradient that leaves
    the node shows which tokens count: those whose gradient is not zero.
    """
    node = loss.smoothed or loss.node
    vector, by_rows = term.reduction == "none", _counts_by_rows(loss, term)
    valid = counted_mask(loss) if vector else None
    arrived: list[torch.Tensor] = []

    def before(grads: tuple[Any, ...]) -> None:
        gradient = next((g for g in grads if g is not None), None)
        if gradient is None:
            return
        if by_rows:
            arrived.append(gradient.detach().clone())  # the function may change it in place
        if vector:
            term.upstream = Deferred(weight_summary(gradient, valid))
        else:
            term.upstream = Deferred(gradient, volatile=True)

    def after(gradients: tuple[Any, ...], _: Any) -> None:
        outgoing = next((g for g in gradients if g is not None), None)
        if outgoing is None:
            return
        if by_rows:
            _count_rows(term, arrived, outgoing)
        else:
            _count_outgoing(term, outgoing)

    undo = [loss.node.register_prehook(guard_hook(before)).remove]
    if by_rows or (term.tokens is None and term.missing.get("tokens") == HIDDEN):
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
    """The tokens of a vector of losses: rows of its input with a gradient; others are ignored."""
    losses = arrived.pop() if arrived else outgoing
    exact = outgoing.dtype != torch.float16  # there, a small gradient may underflow to zero
    if not exact:
        term.missing["tokens"] = FP16
    if exact and outgoing.dim() and losses.numel() and outgoing.numel() % losses.numel() == 0:
        rows = outgoing.detach().reshape(losses.numel(), -1)
        used = torch.linalg.vector_norm(rows, math.inf, dim=1).reshape(losses.shape) != 0
        term.upstream = Deferred(weight_summary(losses, used))


def _count_outgoing(term: OpenTerm, outgoing: torch.Tensor) -> None:
    """The tokens of a loss whose targets are hidden: a cross entropy has a gradient per token."""
    term.missing.pop("tokens", None)
    if term.reduction == "none":
        return
    if term.kind.startswith("NllLoss"):
        term.tokens = Deferred(torch.count_nonzero(outgoing.detach()))
    else:
        count_elements(term, tuple(outgoing.shape))
