"""Cross entropies that reduce by themselves in an autograd function, as fused kernels do.

Each divides by what the caller passes in, and computes its gradient in forward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.training import CLASSES, IGNORED

CLASS_WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.7, 1.3, 2.0, 0.5])[:CLASSES]


class _Precomputed(torch.autograd.Function):
    """A function whose gradients were computed in forward."""

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [saved * upstream[0] for saved in ctx.saved_tensors]
        return (*gradients, *[None] * (len(ctx.needs_input_grad) - len(gradients)))


def _save(ctx: Any, loss: Tensor, *inputs: Tensor) -> Tensor:
    ctx.save_for_backward(*torch.autograd.grad(loss, inputs))
    return loss.detach()


class OfLogits(_Precomputed):
    """The sum over the labels that count, divided."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, divisor: Any) -> Tensor:
        with torch.enable_grad():
            inner = logits.detach().requires_grad_()
            total = F.cross_entropy(inner, labels, ignore_index=IGNORED, reduction="sum")
            return _save(ctx, total / divisor, inner)


class OfHidden(_Precomputed):
    """The same of a projection: the logits never leave the function."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, divisor: Any) -> Tensor:
        with torch.enable_grad():
            inner = [each.detach().requires_grad_() for each in (hidden, weight)]
            logits = inner[0] @ inner[1].T
            total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
            return _save(ctx, total / divisor, *inner)


class ClassWeighted(_Precomputed):
    """Tokens of unequal weight: the rows look like those of a plain cross entropy."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, divisor: Any) -> Tensor:
        with torch.enable_grad():
            inner = logits.detach().requires_grad_()
            total = F.cross_entropy(
                inner, labels, CLASS_WEIGHTS, ignore_index=IGNORED, reduction="sum"
            )
            return _save(ctx, total / divisor, inner)


class Focal(_Precomputed):
    """Tokens that the model knows already weigh less."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, divisor: Any) -> Tensor:
        with torch.enable_grad():
            inner = logits.detach().requires_grad_()
            each = F.cross_entropy(inner, labels, ignore_index=IGNORED, reduction="none")
            return _save(ctx, ((1 - (-each).exp()) ** 2 * each).sum() / divisor, inner)


class Hinge(_Precomputed):
    """A token that meets its margin has no gradient, and counts in the divisor all the same."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, divisor: Any) -> Tensor:
        with torch.enable_grad():
            inner = logits.detach().requires_grad_()
            counted = labels != IGNORED
            scores, right = inner[counted], labels[counted, None]
            others = scores.scatter(1, right, -torch.inf).amax(1)
            missed = others - scores.gather(1, right)[:, 0]
            return _save(ctx, (missed + 0.1).clamp(min=0).sum() / divisor, inner)
