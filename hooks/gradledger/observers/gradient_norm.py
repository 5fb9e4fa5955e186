"""Observes the L2 norms of the gradients that the optimizer gets."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain, local_part
from gradledger.capture.open_records import OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import Track

_layout = operator.attrgetter("layout")


class GradientNorm(Observer):
    """Fills ``norm`` and its parts: one fused pass, none when the loop has just clipped.

    Sharded gradients give the norm of this rank's part; the service combines them.
    """

    facts = ("norm", "group_norms", "nonfinite")

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """Take the norms of what is about to be applied, by parameter group."""
        if step.clip_gives_norm() or "norm" in step.missing:
            return
        for index, group in enumerate(track.optimizer.param_groups):
            parameters = group["params"]
            if group.get("differentiable"):  # others have leaves only, of which ``.grad`` is free
                parameters = [p for p in parameters if p.is_leaf]
            gradients = [g for g in (p.grad for p in parameters) if g is not None]
            unusual = [g for g in gradients if type(g) is not torch.Tensor]
            if not all(map(is_plain, map(local_part, unusual))):
                step.missing["norm"] = "gradients are tensors of a kind that is not read"
                step.norms.clear()
                return
            if not set(map(_layout, gradients)) <= {torch.strided}:  # COO, CSR and so on
                step.missing["norm"] = "sparse gradients"
                step.norms.clear()
                return
            if gradients:
                step.norms.append((index, Deferred(_norms(gradients, step))))


def _norms(gradients: list[Any], step: OpenStep) -> torch.Tensor:
    plain = set(map(type, gradients)) == {torch.Tensor}
    local = gradients if plain else list(map(local_part, gradients))
    if local[0].requires_grad:  # of a double backward; a pass over gradients makes no graph
        local = [part.detach() for part in local]
    norms = list(torch._foreach_norm(local))
    if not plain and any(map(operator.is_not, local, gradients)):
        step.fields["sharded"] = True
        norms = [_part(norm, g) for norm, g in zip(norms, gradients, strict=True)]
    try:
        return torch.stack(norms).float()
    except RuntimeError:  # a model over several devices
        return torch.stack([norm.to(norms[0].device) for norm in norms]).float()


def _part(norm: torch.Tensor, gradient: Any) -> torch.Tensor:
    """So that the squares of all ranks sum to the whole: what several hold counts once."""
    held = [
        gradient.device_mesh.size(dimension)
        for dimension, placement in enumerate(getattr(gradient, "placements", ()))
        if placement.is_replicate()
    ]
    times = math.prod(held)
    return norm if times == 1 else norm / math.sqrt(times)
