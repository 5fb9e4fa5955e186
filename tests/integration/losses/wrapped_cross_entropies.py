"""Cross entropies as people wrap them, each as a mean or a sum over the tokens that count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from helpers.training import CLASSES, IGNORED

# Of logits [N, classes] and labels [N].
CrossEntropy = Callable[[Tensor, Tensor, str], Tensor]

CLASS_WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.7, 1.3, 2.0, 0.5])


def plain(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction=reduction)


def checkpointed(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    loss: Tensor = checkpoint(plain, logits, labels, reduction, use_reentrant=False)
    return loss


def checkpointed_reentrant(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    loss: Tensor = checkpoint(plain, logits, labels, reduction, use_reentrant=True)
    return loss


def offloaded(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return plain(logits, labels, reduction)


def _over_tokens(total: Tensor, labels: Tensor, reduction: str) -> Tensor:
    return total if reduction == "sum" else total / (labels != IGNORED).sum()


def in_checkpointed_chunks(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    total = torch.zeros(())
    for piece, wanted in zip(logits.split(3), labels.split(3), strict=True):
        total = total + checkpointed(piece, wanted, "sum")
    return _over_tokens(total, labels, reduction)


def in_reentrant_chunks(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    total = torch.zeros(())
    for piece, wanted in zip(logits.split(3), labels.split(3), strict=True):
        total = total + checkpointed_reentrant(piece, wanted, "sum")
    return _over_tokens(total, labels, reduction)


def vector(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    return _over_tokens(plain(logits, labels, "none").sum(), labels, reduction)


def masked_vector(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    each = F.cross_entropy(logits, labels.clamp_min(0), reduction="none")
    return _over_tokens((each * (labels != IGNORED)).sum(), labels, reduction)


def smoothed(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(
        logits, labels, ignore_index=IGNORED, label_smoothing=0.1, reduction=reduction
    )


def smoothed_vector(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    return _over_tokens(smoothed(logits, labels, "none").sum(), labels, reduction)


def class_weighted_vector(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    each = F.cross_entropy(
        logits, labels, weight=CLASS_WEIGHTS, ignore_index=IGNORED, reduction="none"
    )
    return _over_tokens(each.sum(), labels, reduction)


def _probabilities(labels: Tensor) -> Tensor:
    return F.one_hot(labels.clamp_min(0), CLASSES).float() * 0.9 + 0.1 / CLASSES


def soft_targets(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    keep = labels != IGNORED
    return F.cross_entropy(logits[keep], _probabilities(labels[keep]), reduction=reduction)


def soft_targets_zeroed(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Rows that do not count have no probability at all."""
    wanted = _probabilities(labels) * (labels != IGNORED)[:, None]
    return _over_tokens(F.cross_entropy(logits, wanted, reduction="sum"), labels, reduction)


def soft_targets_masked(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    each = F.cross_entropy(logits, _probabilities(labels), reduction="none")
    return _over_tokens((each * (labels != IGNORED)).sum(), labels, reduction)


class OwnCrossEntropy(torch.autograd.Function):
    """A vector of token losses, as fused kernels give it; ignored labels get no gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        logs, counts = logits.log_softmax(-1), labels != IGNORED
        ctx.save_for_backward(logs.exp(), labels, counts)
        losses: Tensor = -logs.gather(1, labels.clamp_min(0)[:, None])[:, 0] * counts
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        probabilities, labels, counts = ctx.saved_tensors
        wanted = F.one_hot(labels.clamp_min(0), CLASSES)
        return (probabilities - wanted) * (gradients[0] * counts)[:, None], None


class OwnMean(torch.autograd.Function):
    """The same with the reduction inside: a scalar that does not show its divisor."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
        ctx.divisor = (labels != IGNORED).sum() if reduction == "mean" else torch.ones(())
        loss: Tensor = OwnCrossEntropy.forward(ctx, logits, labels).sum() / ctx.divisor
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient, _ = OwnCrossEntropy.backward(ctx, gradients[0] / ctx.divisor)
        return gradient, None, None


def own_function(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    total: Tensor = _own(logits, labels).sum()
    return _over_tokens(total, labels, reduction)


def own_function_twice_masked(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    each = _own(logits, labels.clamp_min(0))
    return _over_tokens((each.view(-1, 1) * (labels != IGNORED)[:, None]).sum(), labels, reduction)


def own_function_with_reduction(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    loss: Tensor = _own_mean(logits, labels, reduction)
    return loss


_own: Any = OwnCrossEntropy.apply
_own_mean: Any = OwnMean.apply
_compiled: Any = torch.compile(plain, backend="aot_eager", dynamic=True)


def compiled(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    loss: Tensor = _compiled(logits, labels, reduction)
    return loss


OBSERVABLE: list[CrossEntropy] = [
    plain,
    checkpointed,
    checkpointed_reentrant,
    offloaded,
    in_checkpointed_chunks,
    in_reentrant_chunks,
    vector,
    masked_vector,
    smoothed,
    smoothed_vector,
    class_weighted_vector,
    soft_targets,
    soft_targets_zeroed,
    soft_targets_masked,
    own_function,
    own_function_twice_masked,
    own_function_with_reduction,
    compiled,
]
HIDDEN = OBSERVABLE[-2:]  # they do not show their graph
