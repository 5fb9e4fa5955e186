"""Opens the term of a loss: its reduction, and the number of tokens, from shapes and saved tensors.

A value that a saved-tensor hook holds (activation checkpointing, offloading) is never read:
unpacking it would run the forward again, and break the script's backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.open_terms import HALF, OpenTerm
from gradledger.observers.below_losses.masks import ELEMENTWISE_LOSSES, left_by_padding, mask_below
from gradledger.observers.below_losses.sample_counts import averaged_rows, sample_count
from gradledger.observers.losses.compared_features import compares_examples
from gradledger.observers.losses.found_losses import (
    Elements,
    LossNode,
    graph_inputs,
    shape_of,
    signed,
)
from gradledger.observers.losses.loss_patterns import soft_target_side
from gradledger.observers.losses.node_names import (
    PICKS,
    REDUCTIONS,
    SCRIPTED,
    SOFT_CROSS_ENTROPY,
)
from gradledger.observers.losses.saved_hooks import has_unpack_hook, saved
from gradledger.observers.losses_compiled.terms import compiled_term
from gradledger.observers.losses_out_of_sight.calls import Call, call_of, unknown_signatures
from gradledger.observers.losses_out_of_sight.hidden import BARE, Inferred
from gradledger.records import Reduction

REDUCTION_NAMES: tuple[Reduction, ...] = ("none", "mean", "sum")
USUAL_IGNORED = -100  # the default of PyTorch
_HIDDEN_WEIGHTS = "the loss's class weights are held by a saved-tensor hook"
HIDDEN = "the tensor saved for the loss is held by a saved-tensor hook (checkpointing)"

OF_TORCHSCRIPT = (
    "TorchScript computes a part of the loss, where it cannot be seen: run with PYTORCH_JIT=0"
)


@dataclass(frozen=True)
class DeclaredLoss:
    """The script's declaration of a loss that is not visible: ``scale`` times the mean or sum."""

    KIND: ClassVar = "declared"
    tokens: Deferred | int
    reduction: Literal["mean", "sum"]
    scale: float = 1.0


def open_term(loss: LossNode) -> OpenTerm:
    """The loss term as far as it is known before backward reaches the loss node."""
    node = loss.smoothed or loss.node
    call = call_of(loss.node)
    if _is_scripted(loss.node) or _is_scripted(loss.path.function):
        missing = {"tokens": OF_TORCHSCRIPT, "weight": OF_TORCHSCRIPT}
        return OpenTerm(loss.name, "none", missing=missing)
    if loss.compiled is not None:
        term = compiled_term(loss.compiled)
    elif loss.hidden:
        term = _hidden_term(loss.name) if call is None else _called_term(loss, call)
    elif loss.elements is not None:
        term = _elements_term(loss, loss.elements)
    elif call is not None:
        term = _called_term(loss, call)
    elif loss.name.startswith("NllLoss"):
        term = _nll_term(node, loss.name)
    elif loss.name == SOFT_CROSS_ENTROPY:
        term = _soft_term(node)
    elif hasattr(node, "_saved_reduction"):
        term = _elementwise_term(node, loss.name)
    else:
        term = OpenTerm(loss.name, "none", target=_saved_target(node), positions=_labels(node))
        if loss.name in PICKS:
            term.size = math.prod(shape_of(node))  # of which an index or a mask above leaves some
    term.smoothed = loss.smoothed_size
    if loss.reduction is not None:
        term.elements = math.prod(_reduced_shape(loss))
        term.element_reduction = _reduction_of(loss)
    may_count = loss.path.by_one and term.reduction != "mean"  # a mean has its count in it
    term.undivided = not (loss.path.divisors or may_count)
    term.divisors, term.factors = loss.path.divisors, loss.path.factors
    term.learned = loss.path.learned
    term.nonlinear, term.penalty = loss.path.nonlinear, loss.penalty
    term.compares = loss.reduction is not None and compares_examples(loss)
    return term


def _is_scripted(node: Any) -> bool:
    return node is not None and node.name().endswith(SCRIPTED)


def valid_mask(loss: LossNode) -> torch.Tensor | None:
    """Where the elements of a vector of losses count; None if no target is ignored or known."""
    inside = loss if loss.elements is None else loss.elements.inside
    if inside is None:
        return None
    node = inside.smoothed or inside.node
    call = call_of(node)
    if call is not None:
        return call.valid
    if not hasattr(node, "_saved_ignore_index"):
        return None
    target = saved(node, "target")
    return None if target is None else target != ignored_class(node)


def counted_mask(loss: LossNode) -> torch.Tensor | None:
    """Where the elements of a vector of losses count: of targets that are not ignored, or, if a sum
    adds them up, those that a mask below the loss leaves in. None if all may count.

    A mean divides by all of them.
    """
    valid = valid_mask(loss)
    if valid is not None or _reduction_of(loss) != "sum" or loss.reduction is None:
        return valid
    if loss.elements is not None:
        return (
            None if loss.elements.rows is not None else mask_below(loss.node, loss.elements.shape)
        )
    return mask_below(loss.node, shape_of(loss.node)) if loss.name in ELEMENTWISE_LOSSES else None


def _leave_out(term: OpenTerm, counted: torch.Tensor | None) -> None:
    """Count the elements that a mask leaves in, if there is one."""
    if counted is not None:
        term.tokens = Deferred(counted.sum())


def _leave_out_padding(term: OpenTerm, node: Any, shape: tuple[int, ...]) -> None:
    """Count the elements that padding below a mean leaves in, if there is some."""
    left = left_by_padding(node, shape) if term.reduction == "mean" else None
    if left is not None:
        term.padded = Deferred(left)


def hides_ignored(loss: LossNode) -> bool:
    """Whether a saved-tensor hook holds the targets, of which some may be ignored."""
    node = loss.smoothed or loss.node
    return hasattr(node, "_saved_ignore_index") and _is_hidden(node, "target")


def _saved_target(node: Any) -> torch.Tensor | None:
    """The targets of a hand-written or custom loss, if its node saved them."""
    target = saved(node, "target")
    return target if target is not None else saved(node, "index")


def _labels(node: Any) -> int | None:
    """How many labels the utterances of a CTC loss have; None of another loss.

    Their lengths are numbers, or a saved tensor, which is not read: it may be on a device, and a
    saved-tensor hook may hold it.
    """
    if hasattr(node, "_raw_saved_target_lengths"):
        return None
    lengths = getattr(node, "_saved_target_lengths", None)
    return sum(lengths) if isinstance(lengths, tuple) else None


def _nll_term(node: Any, name: str) -> OpenTerm:
    term = OpenTerm(name, REDUCTION_NAMES[node._saved_reduction])
    term.classes = _classes(node)
    ignored = ignored_class(node)
    term.ignored = None if ignored == USUAL_IGNORED else ignored
    term.target = target = saved(node, "target")
    if target is None:
        if term.reduction != "none":
            weighted = _is_hidden(node, "weight")
            term.missing["tokens"] = _HIDDEN_WEIGHTS if weighted else HIDDEN
        return term
    term.size, term.rows = target.numel(), target.shape[0] if target.dim() else 1
    if target.dim() == 1 and term.rows > 1:
        term.samples = sample_count(node, term.rows)
    if term.reduction == "none":
        counted = target != ignored
        term.valid = Deferred(counted.sum())
        weights = saved(node, "weight")
        if weights is not None:  # an index by a mask would wait for the device
            each = weights.detach()[target.where(counted, 0).long()]
            term.class_weight = Deferred(each.where(counted, 0).sum(dtype=torch.float32))
        return term
    # A saved-tensor hook holds all tensors of a node or none: these can be read, too.
    divisor, weighted = node._saved_total_weight, node._saved_weight is not None
    if weighted:
        term.class_weight = Deferred(divisor)
    if weighted or divisor.dtype in HALF:
        # The divisor is no count if classes are weighted, and is rounded in half precision.
        term.tokens = Deferred((target != ignored).sum())
    else:
        term.tokens = Deferred(divisor)
    return term


def _classes(node: Any) -> int | None:
    """The number of classes of a cross entropy, from the shape of its input."""
    ((_, edge),) = graph_inputs(node)
    sizes = edge.shape[:2]  # samples and classes, or the classes of one sample
    return sizes[-1] if sizes else None


def _called_term(loss: LossNode, call: Call) -> OpenTerm:
    """A loss of a known library: see ``losses_out_of_sight``."""
    term = OpenTerm(BARE + loss.name if call.cross_entropy else loss.name, call.reduction)
    if call.unknown is not None:
        term.missing["weight"] = call.unknown
        return term
    if call.target is None and call.tokens is not None:
        term.tokens = _copied(call.tokens)
        return term
    term.target = target = call.readable_target
    if target is None:
        term.missing["tokens"] = call.why_unreadable
        return term
    term.size, term.rows = target.numel(), target.shape[0] if target.dim() else 1
    if target.dim() == 1 and term.rows > 1:
        term.samples = sample_count(loss.node, term.rows)
    if term.reduction == "none":
        return term
    valid = call.valid
    if call.tokens is not None:
        term.tokens = _copied(call.tokens)
    else:
        term.tokens = term.size if valid is None else Deferred(valid.sum())
    if call.class_weights is not None:
        counted = target if valid is None else target[valid]
        term.class_weight = Deferred(call.class_weights.detach()[counted].sum())
    return term


def _copied(count: torch.Tensor | int) -> Deferred | int:
    return Deferred(count) if isinstance(count, torch.Tensor) else count


def _hidden_term(name: str) -> OpenTerm:
    """A function that reduces by itself, of which nothing is known yet."""
    inferred = Inferred(name.removesuffix("Backward"), reason=unknown_signatures.get(name))
    return OpenTerm(name, "none", inferred=inferred)


def _soft_term(node: Any) -> OpenTerm:
    """A cross entropy against probabilities. Rows whose probabilities are all zero do not count."""
    product, side = node.next_functions[0][0], soft_target_side(node)
    whole = node.name() == "SumBackward0"
    shape = tuple(int(s) for s in node._saved_self_sym_sizes)
    logs = product.next_functions[1 - (side or 0)][0]
    classes = signed([logs._saved_dim])[0] % len(shape)
    term = OpenTerm(SOFT_CROSS_ENTROPY, "sum" if whole else "none")
    if whole:
        target = saved(product, "other" if side else "self")
        if target is None or tuple(target.shape) != shape:
            term.tokens = math.prod(shape) // shape[classes]
        else:
            term.tokens = Deferred((target.detach().amax(classes) != 0).sum())
        term.size, term.rows = math.prod(shape) // shape[classes], shape[0]
    return term


def _elementwise_term(node: Any, name: str) -> OpenTerm:
    term = OpenTerm(name, REDUCTION_NAMES[node._saved_reduction])
    target = saved(node, "target")
    term.target = target
    if target is None:
        target = saved(node, "self")
    if target is not None:
        count_elements(term, tuple(target.shape))
        if term.reduction == "sum":
            _leave_out(term, mask_below(node, tuple(target.shape)))
        else:
            _leave_out_padding(term, node, tuple(target.shape))
    elif term.reduction != "none":
        term.missing["tokens"] = HIDDEN
    return term


def _elements_term(loss: LossNode, elements: Elements) -> OpenTerm:
    """The outputs of a node that is not linear: see ``elements``."""
    if elements.rows is not None:
        shape, classes = elements.shape, elements.rows.dim
        term = OpenTerm(loss.name, _reduction_of(loss) if elements.rows.even else "none")
        count_elements(term, shape[:classes] + shape[classes + 1 :])
        term.per_token, term.tokens = True, None
    elif elements.uniform and loss.reduction is not None:
        term = OpenTerm(loss.name, _reduction_of(loss), uniform=True)
        count_elements(term, _reduced_shape(loss))
        _leave_out(term, counted_mask(loss))
        if elements.custom is None:
            _leave_out_padding(term, loss.node, elements.shape)
    else:
        term = OpenTerm(loss.name, "none")
        count_elements(term, elements.shape)
        term.tokens = None
    if loss.reduction is not None and elements.rows is None and elements.inside is None:
        term.averaged = averaged_rows(loss.node, elements.shape)
    term.of = elements.custom
    if elements.inside is not None:
        _describe_inside(term, elements.inside, loss)
    return term


def _describe_inside(term: OpenTerm, inside: LossNode, loss: LossNode) -> None:
    """The loss that the elements are a function of. Elements of ignored targets do not count."""
    node = inside.smoothed or inside.node
    term.of, term.target = inside.name, _saved_target(node)
    if hides_ignored(inside):
        term.tokens, term.missing["tokens"] = None, HIDDEN
    mask = valid_mask(loss)
    if mask is None or loss.elements is None or tuple(mask.shape) != loss.elements.shape:
        return
    if mask.dim() == 1 and mask.numel() > 1:
        term.samples = sample_count(node, mask.numel())
    if term.uniform:
        term.tokens = Deferred(mask.sum())


def _reduction_of(loss: LossNode) -> Reduction:
    return REDUCTIONS.get(loss.reduction.name(), "sum") if loss.reduction is not None else "none"


def _reduced_shape(loss: LossNode) -> tuple[int, ...]:
    """The shape of what the outermost reduction reduces."""
    ((_, edge),) = graph_inputs(loss.reduction)
    return edge.shape


def count_elements(term: OpenTerm, shape: tuple[int, ...]) -> None:
    term.tokens = term.size = math.prod(shape)
    term.rows = shape[0] if shape else 1
    term.positions = math.prod(shape[:-1])


def ignored_class(node: Any) -> int:
    """The ignored class."""
    return signed([node._saved_ignore_index])[0]


def _is_hidden(node: Any, name: str) -> bool:
    """Whether a saved-tensor hook holds a saved tensor."""
    raw = getattr(node, "_raw_saved_" + name, None)
    return raw is not None and has_unpack_hook(node, raw)
