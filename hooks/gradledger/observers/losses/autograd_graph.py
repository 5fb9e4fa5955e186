"""Finds the loss nodes of a micro-batch by walking the autograd graph down from the root.

The walk is bounded, and stops at loss nodes and at nodes that only a model has. It usually visits
fewer than twenty nodes. It evaluates nothing, and changes nothing in the graph.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.autograd.function import BackwardCFunction

from gradledger.capture.isolation import is_plain
from gradledger.observers.losses.saved_hooks import has_unpack_hook
from gradledger.records import Reduction

MAX_NODES = 400
MAX_CONSTANTS = 8

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

# Reductions: a hand-written loss ends in one of these.
REDUCTIONS: dict[str, Reduction] = {
    "MeanBackward0": "mean",
    "MeanBackward1": "mean",
    "SumBackward0": "sum",
}

# Nodes that pick one log-probability per token: a hand-written cross entropy.
_PICKS = frozenset({"GatherBackward0", "IndexBackward0"})
_LOG_PROBABILITIES = frozenset({"LogSoftmaxBackward0"})
_RESHAPES = frozenset(
    {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "SliceBackward0"}
    | {"ToCopyBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "TransposeBackward0"}
)

# Nodes that keep a vector of token losses a vector. The search for a custom loss function continues
# only below these.
_LINEAR = _RESHAPES | {
    "MulBackward0",
    "DivBackward0",
    "NegBackward0",
    "WhereBackward0",
    "IndexBackward0",
    "MaskedFillBackward0",
    "MaskedSelectBackward0",
    "CloneBackward0",
}

# Nodes that a loop adds between its loss and backward, for K, the world size, a weight, or the loss
# scale.
_SCALINGS = frozenset({"DivBackward0", "MulBackward0", "ToCopyBackward0"})

# Nodes that compute logits, and how far they may be from the loss.
_PROJECTIONS = frozenset({"AddmmBackward0", "MmBackward0", "BmmBackward0", "ConvolutionBackward0"})
_HEAD_DEPTH = 24

# The name of a cross entropy against probabilities: sum, product and log_softmax.
SOFT_CROSS_ENTROPY = "SoftCrossEntropy"

# Nodes of a model: there is no loss below them.
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


@dataclass(slots=True)
class LossNode:
    """A loss node, and the path from the root to it."""

    node: Any
    name: str
    path: GraphPath
    smoothed: Any = None  # the cross entropy inside, if the node adds label smoothing to it


class GraphPath(NamedTuple):
    """The operations between the root and a node.

    ``divided`` states whether one is a division. ``coefficient`` is the product of the constant
    factors; None if there are none, or if one cannot be read without waiting.
    """

    divided: bool = False
    coefficient: float | None = None

    def through(self, node: Any, name: str) -> GraphPath:
        """The path continued through ``node``."""
        if name.startswith("DivBackward"):
            return DIVIDED if self.coefficient is None else GraphPath(True, self.coefficient)
        if name.startswith("MulBackward"):
            constant = _constant_factor(node)
            if constant is not None:
                return GraphPath(self.divided, constant * (self.coefficient or 1.0))
        return self


DIRECT = GraphPath()
DIVIDED = GraphPath(divided=True)


@dataclass(slots=True)
class _Candidate:
    """A node that is the loss if there is no loss node below it."""

    order: int
    loss: LossNode
    above: _Candidate | None = None  # the candidate that this one is below
    has_loss_below: bool = False

    def reject(self) -> None:
        """There is a loss node below this candidate, and so below the ones above it."""
        candidate: _Candidate | None = self
        while candidate is not None:
            candidate.has_loss_below = True
            candidate = candidate.above


@dataclass(slots=True)
class _Visit:
    node: Any
    output: int  # which of the node's outputs the walk came from
    path: GraphPath
    candidate: _Candidate | None = None  # the last one on the path
    linear: bool = False  # only products and reshapes since that candidate


def find_losses(root: Any, scaled: bool = False) -> list[LossNode]:
    """Loss nodes below ``root``, nearest first. The node of a hand-written loss is its reduction.

    ``scaled``: the root is the product of a GradScaler, whose factor is no coefficient.

    A reduction is only a loss if there is no loss node below it: below the mean over a vector of
    cross entropies, the cross entropy is the loss, and not the mean. The same applies to a custom
    function that returns a vector of token losses, because it may wrap a loss node.
    """
    only_loss = _find_below_constants(root, scaled)
    if only_loss is not None:
        return [only_loss]
    losses: list[tuple[int, LossNode]] = []
    candidates: list[_Candidate] = []
    queue: deque[_Visit] = deque([_Visit(root, 0, DIRECT)])
    visited = {root}
    while queue and len(visited) <= MAX_NODES:
        visit = queue.popleft()
        node, name = visit.node, visit.node.name()
        loss = _loss_at(node, name, visit.path)
        if loss is not None:
            losses.append((len(visited), loss))
            if visit.candidate is not None:
                visit.candidate.reject()
        elif name not in _MODEL_NODES:
            candidate = _candidate(visit, name, len(visited))
            if candidate is not visit.candidate and candidate is not None:
                candidates.append(candidate)
            linear = candidate is not visit.candidate or (visit.linear and name in _LINEAR)
            path = visit.path if scaled and node is root else visit.path.through(node, name)
            for below, output in node.next_functions:
                if below is not None and below not in visited:
                    visited.add(below)
                    queue.append(_Visit(below, output, path, candidate, linear))
    for candidate in reversed(candidates):  # the lowest first
        if not candidate.has_loss_below:
            candidate.reject()
            losses.append((candidate.order, candidate.loss))
    return [loss for _, loss in sorted(losses, key=lambda pair: pair[0])]


def _find_below_constants(root: Any, scaled: bool) -> LossNode | None:
    """The loss node, if only products with constants are above it, as in most loops."""
    node, path = root, DIRECT
    for _ in range(MAX_CONSTANTS):
        name = node.name()
        if name in LOSS_NODES:
            return LossNode(node, name, path)
        if name not in _SCALINGS:
            return None
        (below, _), *constants = node.next_functions
        if below is None or any(function is not None for function, _ in constants):
            return None
        if not scaled or node is not root:
            path = path.through(node, name)
        node = below
    return None


def _candidate(visit: _Visit, name: str, order: int) -> _Candidate | None:
    """The candidate for the nodes below this one: this node itself, or the candidate above it."""
    node, above = visit.node, visit.candidate
    if above is None and name in REDUCTIONS:
        return _Candidate(order, LossNode(node, name, visit.path))
    if above is not None and above.above is None and visit.linear and _is_custom_vector(visit):
        return _Candidate(order, LossNode(node, name, visit.path), above)
    return above


def _is_custom_vector(visit: _Visit) -> bool:
    return isinstance(visit.node, BackwardCFunction) and len(_shape(visit.node, visit.output)) > 0


def find_opaque(root: Any) -> tuple[Any, int] | None:
    """The nearest function that returns a scalar and hides its graph, and the index of the output.

    A custom autograd function, or a compiled graph with the loss inside.
    """
    queue: deque[tuple[Any, int]] = deque([(root, 0)])
    visited = {root}
    while queue and len(visited) <= MAX_NODES:
        node, output = queue.popleft()
        if len(_shape(node, output)) > 0:
            continue
        if isinstance(node, BackwardCFunction):
            return node, output
        for below, index in node.next_functions:
            if below is not None and below not in visited:
                visited.add(below)
                queue.append((below, index))
    return None


def head_of(loss: LossNode) -> Any:
    """The source of the logits of a cross entropy: the parameter of the last projection.

    The chunks of one loss share it, and so do several forwards of one model. If there is no
    parameter, it is the node that computed the logits, which chunks share. None for other losses.
    """
    node = loss.smoothed or loss.node
    if not (node.name().startswith("NllLoss") or loss.name in (*_PICKS, SOFT_CROSS_ENTROPY)):
        return None
    for _ in range(_HEAD_DEPTH):
        below = node.next_functions[0][0] if node.next_functions else None
        if node.name() in _PROJECTIONS or below is None:
            break
        node = below
    parameter = _parameter_of(node)
    return node if parameter is None else parameter


def _parameter_of(projection: Any) -> Any:
    for node, _ in reversed(projection.next_functions):  # the weight comes after the input
        for _ in range(4):  # transposed, cast
            if node is None or node.name() == "torch::autograd::AccumulateGrad":
                break
            node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
        if node is not None and node.name() == "torch::autograd::AccumulateGrad":
            return node.variable
    return None


def _shape(node: Any, output: int) -> tuple[int, ...]:
    return tuple(node._input_metadata[output].shape)


def _loss_at(node: Any, name: str, path: GraphPath) -> LossNode | None:
    if name in LOSS_NODES or (name in _PICKS and _below(node, _LOG_PROBABILITIES)):
        return LossNode(node, name, path)
    if name in ("SumBackward0", "SumBackward1") and soft_target_side(node) is not None:
        return LossNode(node, SOFT_CROSS_ENTROPY, path)
    if name == "AddBackward0":
        smoothed = _label_smoothing(node)
        if smoothed is not None:
            return LossNode(node, smoothed.name(), path, smoothed)
    return None


def soft_target_side(node: Any) -> int | None:
    """The index of the factor with the probabilities, if ``node`` sums ``target * log_softmax``.

    The sum must be over everything, or over the classes alone.
    """
    product = node.next_functions[0][0]
    if product is None or product.name() != "MulBackward0":
        return None
    sides = [below for below, _ in product.next_functions]
    for side, (logs, target) in enumerate((sides, sides[::-1])):
        if target is None and logs is not None and logs.name() in _LOG_PROBABILITIES:
            summed = getattr(node, "_saved_dim", None)
            rank = len(node._saved_self_sym_sizes)
            over = None if summed is None else [d % rank for d in signed(summed)]
            return 1 - side if over in (None, [signed([logs._saved_dim])[0] % rank]) else None
    return None


def signed(saved: Any) -> list[int]:
    """Saved numbers; PyTorch returns negative ones as huge unsigned ones."""
    return [int(n) - 2**64 if int(n) >= 2**63 else int(n) for n in saved]


def _constant_factor(node: Any) -> float | None:
    """The constant factor of a product. A number is saved as a 0-dim CPU tensor in a graph."""
    raw = getattr(node, "_raw_saved_other", None)
    if raw is None or has_unpack_hook(node, raw):
        return None
    other = getattr(node, "_saved_other", None)
    if isinstance(other, (int, float)):
        return float(other)
    if other is None or other.dim() or not other.is_cpu or not is_plain(other):
        return None
    return None if other.requires_grad or other.is_complex() else float(other)


def _below(node: Any, names: frozenset[str]) -> bool:
    """Whether one of ``names`` is below ``node``, with only reshapes in between."""
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
    halves are above one log_softmax. A token's weight is that of the sum, not (1 - eps) of it.
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
