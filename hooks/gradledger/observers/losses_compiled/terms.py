"""Terms of losses inside compiled graphs, for ``observers.losses``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.open_terms import OpenTerm
from gradledger.observers.losses_compiled.live import CompiledLoss, LiveLoss, UnreadableError

Hook = Callable[..., None]


def compiled_term(loss: CompiledLoss) -> OpenTerm:
    """The term of a loss that PyTorch computes inside a compiled graph."""
    planned = loss.planned
    term = OpenTerm(planned.kind, planned.reduction)
    try:
        live = loss.live[loss.index]
    except UnreadableError as error:
        term.missing["tokens"] = term.missing["weight"] = str(error)
        return term
    term.target, term.size = live.target, math.prod(live.shape)
    term.rows = live.shape[0] if live.shape else 1
    term.elements, term.element_reduction = live.elements, planned.outermost_name
    if planned.has_classes:
        term.classes = planned.classes
        _count_classes(term, live)
    else:
        term.positions = math.prod(live.shape[:-1])
        term.tokens = None if planned.reduction == "none" else term.size
    return term


def _count_classes(term: OpenTerm, live: LiveLoss) -> None:
    valid = _valid(live)
    if term.reduction == "none" or valid is None or live.target is None:
        return
    term.tokens = Deferred(valid.sum())
    if live.class_weights is not None:
        term.class_weight = Deferred(live.class_weights.detach()[live.target[valid]].sum())


def _valid(live: LiveLoss) -> torch.Tensor | None:
    """Where the targets count."""
    if live.target is None or live.ignored is None:
        return None
    return live.target != live.ignored


def watch_compiled(
    loss: CompiledLoss, term: OpenTerm, guard_hook: Callable[[Hook], Hook]
) -> list[Callable[[], None]]:
    """Read the gradient that arrives at the output of the compiled graph."""
    if "weight" in term.missing:
        return []
    live, output = loss.live[loss.index], loss.output

    def before(grads: tuple[Any, ...]) -> None:
        gradient = grads[output]
        if gradient is None:
            return
        weight = gradient.detach() * live.weight  # a copy, whatever comes later
        if live.element_weight is not None:
            term.element_upstream = Deferred(gradient.detach() * live.element_weight)
        if term.reduction == "none":
            term.upstream = Deferred(weight_summary(weight, _valid(live)))
        else:
            term.upstream = Deferred(weight)

    return [loss.node.register_prehook(guard_hook(before)).remove]


def weight_summary(gradient: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """Tokens that count, their total weight, least and most |weight|, and total |weight|."""
    weights = gradient.detach().double() if gradient.device.type != "mps" else gradient.detach()
    counted = weights != 0
    if valid is not None and valid.shape == counted.shape:
        counted = counted & valid
    size = weights.abs()
    if not size.numel():
        return torch.tensor(
            [0.0, 0.0, math.inf, 0.0, 0.0], dtype=weights.dtype, device=weights.device
        )
    least = torch.where(counted, size, math.inf).min()
    most = torch.where(counted, size, 0.0).max()
    total = torch.where(counted, weights, 0.0).sum()
    absolute = torch.where(counted, size, 0.0).sum()
    return torch.stack([counted.sum().to(total.dtype), total, least, most, absolute])
