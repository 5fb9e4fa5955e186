"""Observes the L2 norms of the gradients that the optimizer applies."""

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
    from gradledger.capture.windows import OptimizerWindow

_layout = operator.attrgetter("layout")


class GradientNorm(Observer):
    """Fills ``norm`` and ``group_norms`` in one fused pass; in none if the loop has just clipped.

    ``trainable`` is filled if no parameter has a gradient.

    The norm of sharded gradients is that of this rank's part. The service combines the parts.
    """

    facts = ("norm", "group_norms", "nonfinite")

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Compute the norms of the gradients that are about to be applied, by parameter group."""
        if not step.micro_batches:
            parameters = window.parameters()
            if all(p.is_leaf and p.grad is None for p in parameters):  # whatever was clipped
                step.fields["trainable"] = sum(1 for p in parameters if p.requires_grad)
        if step.clip_gives_norm() or "norm" in step.missing:
            return
        for index, group in enumerate(window.optimizer.param_groups):
            parameters = group["params"]
            if group.get("differentiable"):  # all other groups hold leaves only
                parameters = [p for p in parameters if p.is_leaf]
            gradients = [g for g in (p.grad for p in parameters) if g is not None]
            unusual = [g for g in gradients if type(g) is not torch.Tensor]
            if not all(map(is_plain, map(local_part, unusual))):
                step.missing["norm"] = "gradients are tensors of a class that is not read"
                step.norms.clear()
                return
            if not set(map(_layout, gradients)) <= {torch.strided}:  # COO, CSR and so on
                step.missing["norm"] = "sparse gradients"
                step.norms.clear()
                return
            if gradients:
                step.norms.append((index, Deferred(_norms(gradients, step))))


def _norms(gradients: list[Any], step: OpenStep) -> torch.Tensor:
    unusual = (gradient for gradient in gradients if type(gradient) is not torch.Tensor)
    if any(local_part(gradient) is not gradient for gradient in unusual):
        step.fields["sharded"] = True
    return local_norms(gradients)


def local_norms(tensors: list[Any], order: float = 2.0) -> torch.Tensor:
    """The norm of each, as one vector; of a sharded one, the norm of this rank's share."""
    plain = set(map(type, tensors)) == {torch.Tensor}
    local = tensors if plain else list(map(local_part, tensors))
    if local[0].requires_grad:  # from a double backward: the norms must not extend the graph
        local = [part.detach() for part in local]
    norms = list(torch._foreach_norm(local, order))
    if not plain and any(map(operator.is_not, local, tensors)):
        norms = [_share_of_norm(norm, g) for norm, g in zip(norms, tensors, strict=True)]
    try:
        return torch.stack(norms).float()
    except RuntimeError:  # a model over several devices
        return torch.stack([norm.to(norms[0].device) for norm in norms]).float()


def _share_of_norm(norm: torch.Tensor, tensor: Any) -> torch.Tensor:
    """This rank's share of the norm: the squares of the shares of all ranks sum to its square."""
    copies = holders(tensor)
    return norm if copies == 1 else norm / math.sqrt(copies)


def holders(tensor: Any) -> int:
    """How many ranks hold the same part of a sharded tensor, which is divided among them."""
    return math.prod(
        tensor.device_mesh.size(dimension)
        for dimension, placement in enumerate(getattr(tensor, "placements", ()))
        if placement.is_replicate()
    )
