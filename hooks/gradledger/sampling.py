"""Copies a few coordinates of a few gradients: enough to see what is done to all of them."""

from __future__ import annotations

from typing import Any

import torch

from gradledger.deferred import Deferred

COORDINATES = 16


def sample(parameters: list[Any]) -> Deferred | None:
    """Copies of evenly spread coordinates of the parameters' gradients, in a fixed order."""
    gradients = (p.grad for p in parameters if p.grad is not None)
    views = [view for view in map(_coordinates, gradients) if view is not None]
    if not views:
        return None
    with torch.no_grad():
        return Deferred(torch.cat(views))


def _coordinates(gradient: Any) -> torch.Tensor | None:
    local = getattr(gradient, "_local_tensor", gradient)  # a DTensor's own shard
    if local.is_sparse or local.numel() == 0:
        return None
    count = min(COORDINATES, local.numel())
    stride = max(1, local.numel() // count)
    view: torch.Tensor = local.detach().as_strided((count,), (stride,), local.storage_offset())
    return view
