"""Finds the loss nodes of a micro-batch by walking the autograd graph down from the root.

The walk is bounded and stops at loss nodes and at nodes that only a model has, so it usually
visits fewer than twenty nodes. Nothing is evaluated and nothing in the graph is changed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from gradledger.records import Reduction

MAX_NODES = 400

# Losses that PyTorch implements as one node.
LOSS_NODES = frozenset(
    {
        "NllLossBackward0",
        "NllLoss2DBackward0",
        "MseLossBackward0",
        "SmoothL1LossBackward0",
        "HuberLossBackward0",
        "BinaryCrossEntropyBackward0",
        "BinaryCrossEntropyWithLogitsBackward0",
        "KlDivBackward0",
        "SoftMarginLossBackward0",
        "MultiMarginLossBackward0",
        "MultilabelMarginLossBackward0",
        "CtcLossBackward0",
    }
)

# Reductions: a loss written by hand ends in one of these.
REDUCTIONS: dict[str, Reduction] = {
    "MeanBackward0": "mean",
    "MeanBackward1": "mean",
    "SumBackward0": "sum",
}

# Picks one log-probability per token: a cross entropy written by hand.
_PICKS = frozenset({"GatherBackward0", "IndexBackward0"})
_LOG_PROBABILITIES = frozenset({"LogSoftmaxBackward0"})
_RESHAPES = frozenset(
    {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "SliceBackward0"}
    | {"ToCopyBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "TransposeBackward0"}
)

# Where a model begins: no loss lies below.
_MODEL_NODES = frozenset(
    {
        "torch::autograd::AccumulateGrad",
        "AddmmBackward0",
        "MmBackward0",
        "BmmBackward0",
        "BaddbmmBackward0",
        "ConvolutionBackward0",
        "NativeLayerNormBackward0",
        "NativeBatchNormBackward0",
        "CudnnBatchNormBackward0",
        "EmbeddingBackward0",
        "LogSoftmaxBackward0",
        "ScaledDotProductFlashAttentionForCpuBackward0",
        "CompiledFunctionBackward",
    }
)


@dataclass
class Found:
    """A loss node, and the path from the root to it.

    ``divided`` says whether a division lies on it; ``coefficient`` is the product of the constants
    multiplied on it, None when there are none or one of them cannot be read without waiting.
    """

    node: Any
    name: str
    path: Path
    smoothed: Any = None  # the cross entropy inside, when the node sums it with label smoothing


@dataclass(frozen=True)
class Path:
    """What lies between the root and a node."""

    divided: bool = False
    coefficient: float | None = None

    def through(self, node: Any, name: str) -> Path:
        """The path continued through ``node``."""
        if name.startswith("DivBackward"):
            return Path(True, self.coefficient)
        if name.startswith("MulBackward"):
            constant = _constant_factor(node)
            if constant is not None:
                return Path(self.divided, constant * (self.coefficient or 1.0))
        return self


@dataclass
class _Visit:
    node: Any
    path: Path
    reduction: _Visit | None  # the topmost reduction on the way here
    has_loss: bool = False


def find_losses(root: Any, scaled: bool = False) -> list[Found]:
    """Loss nodes below ``root``, nearest first; a hand-written loss is its reduction.

    ``scaled`` says that the root is a GradScaler's product: its factor is no coefficient.

    A reduction counts only when no loss node lies below it, so the mean over a vector of
    cross entropies is the cross entropy's vector, not the mean.
    """
    found: list[tuple[int, Found]] = []
    reductions: list[tuple[int, _Visit]] = []
    queue: deque[_Visit] = deque([_Visit(root, Path(), None)])
    seen = {root}
    while queue and len(seen) <= MAX_NODES:
        visit = queue.popleft()
        node, name = visit.node, visit.node.name()
        loss = _loss_at(node, name, visit.path)
        if loss is not None:
            found.append((len(seen), loss))
            if visit.reduction is not None:
                visit.reduction.has_loss = True
        elif name not in _MODEL_NODES:
            reduction = visit.reduction
            if reduction is None and name in REDUCTIONS:
                reduction = _Visit(node, visit.path, None)
                reductions.append((len(seen), reduction))
            path = visit.path if scaled and node is root else visit.path.through(node, name)
            for below, _ in node.next_functions:
                if below is not None and below not in seen:
                    seen.add(below)
                    queue.append(_Visit(below, path, reduction))
    by_hand = [(order, r) for order, r in reductions if not r.has_loss]
    found += [(order, Found(r.node, r.node.name(), r.path)) for order, r in by_hand]
    return [loss for _, loss in sorted(found, key=lambda pair: pair[0])]


def _loss_at(node: Any, name: str, path: Path) -> Found | None:
    if name in LOSS_NODES or (name in _PICKS and _below(node, _LOG_PROBABILITIES)):
        return Found(node, name, path)
    if name == "AddBackward0":
        smoothed = _label_smoothing(node)
        if smoothed is not None:
            return Found(node, smoothed.name(), path, smoothed)
    return None


def _constant_factor(node: Any) -> float | None:
    """The Python number that a product multiplies by; numbers in a graph are 0-dim CPU tensors."""
    raw = getattr(node, "_raw_saved_other", None)
    if raw is not None and getattr(raw, "unpack_hook", None) is not None:
        return None
    other = getattr(node, "_saved_other", None)
    if isinstance(other, (int, float)):
        return float(other)
    if other is None or other.dim() or other.device.type != "cpu" or other.requires_grad:
        return None
    return float(other)


def _below(node: Any, names: frozenset[str]) -> bool:
    """Whether ``node`` stands on one of ``names``, with nothing but reshapes between."""
    while node.next_functions and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
        if node.name() in names:
            return True
        if node.name() not in _RESHAPES:
            return False
    return False


def _label_smoothing(node: Any) -> Any:
    """The nll node inside ``(1 - eps) * nll + eps / C * smooth``, else None.

    ``F.cross_entropy(label_smoothing=eps)`` is composed of these nodes (aten LossNLL.cpp); both
    halves stand on one log_softmax. Its tokens weigh what the sum weighs, not (1 - eps) of it.
    """
    halves = [below for below, _ in node.next_functions]
    if len(halves) != 2 or any(h is None or not h.name().startswith("MulBackward") for h in halves):
        return None
    inner = [half.next_functions[0][0] for half in halves]
    for nll, smooth in (inner, inner[::-1]):
        if nll is None or smooth is None or not nll.name().startswith("NllLoss"):
            continue
        base = _log_softmax(nll)
        if base is not None and _log_softmax(smooth) is base:
            return nll
    return None


def _log_softmax(node: Any) -> Any:
    for _ in range(12):
        if node is None or node.name() in _LOG_PROBABILITIES:
            return node
        node = node.next_functions[0][0] if node.next_functions else None
    return None
