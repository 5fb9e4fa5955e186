"""Finds which elements of a loss receive a gradient, from the masks below them.

A loop may apply its mask before the loss: ``((p - y) * mask).square().sum()``. The gradient at the
elements does not show such a mask, but the graph holds it: the factor of a product, or what a fill
or a selection leaves out. Only a mask of zeros and ones counts; another factor is a weight.

Only functions of single elements are between the loss and its mask. At any other node, all elements
may receive a gradient. Nothing waits for a device: whether a factor is a mask is decided there.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gradledger.observers.losses.found_losses import Edge, graph_inputs
from gradledger.observers.losses.node_names import ADDITIONS, GUARDS, PRODUCTS
from gradledger.observers.losses.saved_hooks import saved

MAX_NODES = 24  # visited below one loss
PADDED, LEAST_LENGTH = (2, 3), 4  # dimensions of padded rows, and their length with the padding
MOST_ELEMENTS = 2**18  # of a mask whose form is looked at: it is read as a whole

# Losses of PyTorch that compare element by element.
ELEMENTWISE_LOSSES = frozenset(
    {"MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", "SoftMarginLossBackward0"}
    | {"BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0"}
)
_FUNCTIONS = frozenset(
    {"PowBackward0", "AbsBackward0", "SqrtBackward0", "LogBackward0", "Log1PBackward0"}
    | {"ExpBackward0", "CoshBackward0", "SoftplusBackward0", "SigmoidBackward0", "TanhBackward0"}
    | {"LogSigmoidBackward0", "CloneBackward0", "ToCopyBackward0", "AliasBackward0"}
)
_OF_SINGLE_ELEMENTS = ELEMENTWISE_LOSSES | _FUNCTIONS | ADDITIONS | PRODUCTS | GUARDS
_MASKING = frozenset({"MulBackward0", "MaskedFillBackward0", "MaskedFillBackward1"})
# They keep the order of the elements.
_SHAPES = frozenset(
    {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0"}
    | {"SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2"}
)

_FOLLOWED = _OF_SINGLE_ELEMENTS | _MASKING | _SHAPES | {"WhereBackward0"}


def mask_below(node: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Where the elements that ``node`` computes receive a gradient; None if all may.

    They have this ``shape``, also where the node adds them up.
    """
    return _Search().at(node, shape)


def left_by_padding(node: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
    """How many elements of a mean a mask of padding leaves in; negative if it is another one.

    Rows of different lengths are padded at the end, or at the beginning, and none is all padding. A
    mask of another form may be a choice, such as that of whole samples, of columns, or of a hole in
    an image, and its mean divides by all on purpose. So may one that leaves one element of each row
    in, as that of the action that was taken.
    """
    if len(shape) not in PADDED or shape[1] < LEAST_LENGTH or 0 in shape:
        return None
    if shape[0] * shape[1] > MOST_ELEMENTS or not _is_masked_by_rows(node, shape):
        return None
    search = _Search()
    mask = search.at(node, shape)
    if mask is None or not search.of_masks:
        return None
    rows = mask if mask.dim() == 2 else mask[:, :, 0]  # equal along the third dimension
    least, most = rows.to(torch.int8).diff(dim=1).aminmax()
    lengths = rows.sum(1)
    is_padding = ((least >= 0) | (most <= 0)) & (lengths.amin() > 0) & (lengths.amax() > 1)
    for is_mask in search.of_masks:
        is_padding = is_padding & is_mask
    return torch.where(is_padding, lengths.sum() * math.prod(shape[2:]), -1)


def _is_masked_by_rows(node: Any, shape: tuple[int, ...]) -> bool:
    """Whether a factor, fill or selection is below, and each may be a mask of padding.

    Most means have none, or have weights of another form, and this is quick.
    """
    queue, any_mask = [node], False
    for _ in range(MAX_NODES):
        if not queue:
            break
        current = queue.pop()
        name = current.name()
        applied = _applied(current, name)
        if isinstance(applied, torch.Tensor) and applied.dim():
            if not _is_of_rows(applied, shape):
                return False
            any_mask = True
        if name in _FOLLOWED:
            queue += [below for below, _ in current.next_functions if below is not None]
    return any_mask


def _is_of_rows(applied: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a tensor has one value for each row and position of a loss of this shape."""
    if type(applied) is not torch.Tensor or applied.layout is not torch.strided:
        return False
    sizes = tuple(applied.shape)
    while len(sizes) > len(shape) and sizes[-1] == 1:
        sizes = sizes[:-1]
    if len(sizes) != len(shape) or sizes[:2] != tuple(shape[:2]) or not applied.stride(1):
        return False
    return len(sizes) == 2 or sizes[2] == 1 or applied.stride(2) == 0


def _applied(node: Any, name: str) -> Any:
    """What a node multiplies by, fills or selects by; None if nothing."""
    if name.startswith("BinaryCrossEntropy"):
        return saved(node, "weight")
    if name == "WhereBackward0":
        return saved(node, "condition")
    if name not in _MASKING or len(graph_inputs(node)) != 1:
        return None
    if name == "MulBackward0":
        return saved(node, "self" if node.next_functions[0][0] is None else "other")
    return saved(node, "mask")


class _Search:
    """The search below one loss, which ends after ``MAX_NODES``: then, all elements may."""

    def __init__(self) -> None:
        self._visited = 0
        self.of_masks: list[torch.Tensor] = []  # of each factor or fill, whether it is a mask

    def at(self, node: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
        """The mask at a node."""
        self._visited += 1
        name = node.name()
        if self._visited > MAX_NODES:
            return None
        if name in _SHAPES:
            return self._before_reshape(node, shape)
        if name == "WhereBackward0":
            return self._at_selection(node, shape)
        if name not in _MASKING and name not in _OF_SINGLE_ELEMENTS:
            return None
        below, own = self._below(node, shape), self._own_mask(node, name)
        if own is None:
            return below
        own = own.expand(shape)
        return own if below is None else own & below

    def _below(self, node: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Where any of the inputs receives a gradient."""
        masks = [self._through(edge, shape) for _, edge in graph_inputs(node)]
        result = masks[0] if masks else None
        for mask in masks[1:]:
            result = None if result is None or mask is None else result | mask
        return result

    def _through(self, edge: Edge, shape: tuple[int, ...]) -> torch.Tensor | None:
        """The mask at an input; one of another shape is repeated."""
        return self.at(edge.node, shape) if edge.shape == shape else None

    def _before_reshape(self, node: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
        ((_, edge),) = graph_inputs(node)
        mask = self.at(edge.node, edge.shape)
        return None if mask is None else mask.reshape(shape)

    def _at_selection(self, node: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Where the one tensor, or the other, is selected, and receives a gradient."""
        condition = saved(node, "condition")
        if condition is None or condition.dtype is not torch.bool:
            return None
        result: torch.Tensor | None = None
        inputs = graph_inputs(node)
        if len(inputs) == 1:
            self._note_mask(condition)
        for index, edge in inputs:
            side, below = condition if index == 0 else ~condition, self._through(edge, shape)
            side = side.expand(shape) if below is None else side & below
            result = side if result is None else result | side
        return result

    def _own_mask(self, node: Any, name: str) -> torch.Tensor | None:
        """The mask that a node applies itself; None if none, or a factor of one number."""
        applied = _applied(node, name)
        if not name.startswith("MaskedFill"):
            return self._zeros_and_ones(applied)
        if not isinstance(applied, torch.Tensor) or applied.dtype is not torch.bool:
            return None
        self._note_mask(applied)
        return ~applied

    def _note_mask(self, mask: torch.Tensor) -> None:
        self.of_masks.append(torch.ones((), dtype=torch.bool, device=mask.device))

    def _zeros_and_ones(self, factor: Any) -> torch.Tensor | None:
        """Where a factor is one, if it is zero everywhere else; a weight leaves nothing out."""
        if not isinstance(factor, torch.Tensor) or not factor.dim() or factor.is_complex():
            return None
        if factor.layout is not torch.strided:
            return None
        counted = factor.detach() != 0
        is_mask = ((factor.detach() == 1) == counted).all()
        self.of_masks.append(is_mask)
        return counted | ~is_mask
