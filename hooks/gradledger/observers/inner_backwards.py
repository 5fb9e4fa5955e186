"""Observes losses whose backward the script runs by itself, on hidden states that it detached.

To save memory, a loss function runs the head of the model, the loss and its backward for one chunk
of hidden states after the other. Each chunk is detached: it is a leaf, and its gradient is passed
on by one more backward, of the hidden states. A cache of features does the same the other way
round: one backward of the loss, and several that pass its gradient on. So do stages of a model that
a script connects by hand.

All these backwards are one micro-batch: that of the last one, with the losses of the first ones.
The backwards before it count as parts of it if

- they gave gradients to leaves that no optimizer holds, and their losses are visible;
- the last one starts from as many gradients as these leaves have, or from products of outputs with
  these very gradients, or from a function that hides its graph and has one input of as many
  elements, which was computed before the losses of the others: the next forward of adversarial
  training, whose perturbation is such a leaf, was not;
- what it passes on has the sum and the norm of these gradients. That is compared later: if it was
  multiplied, the layers above and below have different gradients, and no weights are stated.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gradledger.capture.async_copy import Deferred, joined
from gradledger.capture.isolation import alive, is_plain
from gradledger.capture.open_records import CountedMicroBatch, OpenMicroBatch, OpenStep
from gradledger.capture.open_terms import HALF
from gradledger.observers.base import Observer
from gradledger.observers.losses.autograd_graph import find_opaque
from gradledger.observers.losses.found_losses import Edge, graph_inputs, sequence_number
from gradledger.observers.losses.loss_patterns import product_with_tensor
from gradledger.observers.losses.loss_terms import EngineHook
from gradledger.observers.losses_out_of_sight.calls import call_of

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

MOST_PARTS = 256  # losses of one micro-batch
MOST_LEAVES = 64  # of one backward: fast weights of meta-learning are more
TOLERANCE, TOLERANCE_HALF = 1e-3, 2e-2  # of a norm, relative; in half precision
SUM_ROUNDING = 1e-6  # of a sum in float32, relative to the norm times the root of the length


@dataclass(slots=True)
class _Leaf:
    """A leaf that no optimizer holds, and its gradient after the last backward that reached it."""

    reference: weakref.ref[Any]
    size: int
    summary: Deferred
    gradient: weakref.ref[torch.Tensor]

    def holds(self, part: torch.Tensor) -> bool:
        """Whether a tensor is a part of its gradient, not of later ones in the same memory."""
        address = part.untyped_storage().data_ptr()
        return any(g.untyped_storage().data_ptr() == address for g in alive([self.gradient]))


@dataclass(slots=True)
class PassedOn:
    """Summaries of the gradients that leaves got, and of those that were passed on."""

    computed: list[Deferred]
    passed: list[Deferred]
    half: bool
    size: int
    before: Any = None  # those of an earlier backward that passed on, of three stages

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""
        yield from self.computed
        yield from self.passed
        yield from () if self.before is None else self.before.deferred()

    def reason(self) -> str | None:
        """Why the weights of the losses are not known; None if all was passed on as it was."""
        earlier: str | None = None if self.before is None else self.before.reason()
        return earlier or self._reason()

    def _reason(self) -> str | None:
        if not self.passed or any(each.has_no_copy for each in self.deferred()):
            return "the gradients that inner backwards passed on were not read"
        (total, norm), (passed, passed_norm) = _sums(self.computed), _sums(self.passed)
        tolerance = TOLERANCE_HALF if self.half else TOLERANCE
        if norm == passed_norm == 0:
            return None  # all targets are ignored
        if not norm or not math.isfinite(norm) or not math.isfinite(passed_norm):
            return "the gradients that inner backwards computed are zero or not finite"
        factor = passed_norm / norm
        # a sum of many numbers of both signs is less exact than their norm
        rounding = (tolerance + SUM_ROUNDING * math.sqrt(self.size)) * passed_norm
        if abs(passed - factor * total) > rounding:
            return (
                "the script changes the gradients of detached tensors before it passes them on, or "
                "it passes on other gradients"
            )
        if abs(factor - 1) > tolerance:
            return (
                "the script runs the backward of its loss on detached tensors, and passes on "
                f"{factor:.4g} times their gradients: the layers below these tensors get "
                f"{factor:.4g} times the gradient of the loss"
            )
        return None


def _sums(summaries: list[Deferred]) -> tuple[float, float]:
    totals, norms = zip(*(each.values() for each in summaries), strict=True)
    return sum(totals), math.hypot(*norms)


def _summary(gradient: torch.Tensor) -> Deferred:
    """Sum and norm, without another tensor of this size."""
    values = gradient.detach()
    values = torch.view_as_real(values) if values.is_complex() else values
    dtype = torch.float32 if values.dtype in HALF else values.dtype
    norm = torch.linalg.vector_norm(values, dtype=dtype)
    return Deferred(torch.stack([values.sum(dtype=dtype), norm]))


def _is_readable(gradient: Any) -> bool:
    return (
        gradient is not None
        and is_plain(gradient)
        and gradient.layout is torch.strided
        and not gradient.is_nested
    )


@dataclass(slots=True)
class _Open:
    """The backwards of a micro-batch whose gradients have not all been passed on."""

    parts: list[OpenMicroBatch] = field(default_factory=list)  # with losses
    passes: list[OpenMicroBatch] = field(default_factory=list)  # that pass on, but the last one
    leaves: list[_Leaf] = field(default_factory=list)
    passed: list[Deferred] = field(default_factory=list)
    passed_size: int = 0
    half: bool = False
    number: int = 0  # of the root of the first backward, among all nodes
    is_of_whole: bool = False  # its part consists of several backwards itself

    @property
    def size(self) -> int:
        """How many gradients are to be passed on."""
        return sum(leaf.size for leaf in self.leaves)

    def add(self, micro_batch: OpenMicroBatch, leaves: list[Any]) -> None:
        """A backward with a loss has given gradients to leaves."""
        self.parts.append(micro_batch)
        for leaf in leaves:
            gradient = leaf.grad
            if not _is_readable(gradient):
                continue
            self.half = self.half or gradient.dtype in HALF
            new = _Leaf(
                weakref.ref(leaf),
                gradient.numel(),
                _summary(gradient),
                weakref.ref(gradient),
            )
            self.leaves = [old for old in self.leaves if old.reference() is not leaf] + [new]


class _ThreadState(threading.local):
    open: _Open | None = None
    passing: tuple[OpenMicroBatch, int] | None = None  # the backward that runs, and its gradients
    number: int = 0  # of its root, among all nodes


class InnerBackwards(Observer):
    """Gives the losses of inner backwards to the one that passes their gradients on."""

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows, self._thread = windows, _ThreadState()

    def resume(self, windows: list[OptimizerWindow]) -> None:
        """Forget backwards before the pause."""
        super().resume(windows)
        self._thread = _ThreadState()

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """What was not passed on up to a step is not part of a later micro-batch."""
        self._thread.open = None

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Read what is passed on, if this backward may do so."""
        state, self._thread.passing = self._thread.open, None
        node = getattr(roots[0], "grad_fn", None) if roots else None
        self._thread.number = (sequence_number(node) if node is not None else None) or 0
        edges = _starts(micro_batch, roots, state) if state is not None else []
        size = sum(math.prod(edge.shape) for edge, _ in edges)
        if state is None or not 0 < size <= state.size - state.passed_size:
            return
        self._thread.passing = micro_batch, size
        for edge, above in edges:
            micro_batch.undo.append(self._read(state, edge, above))

    def _read(self, state: _Open, edge: Edge, above: Any) -> Callable[[], None]:
        """Read the gradient of an output: as it arrives, or as it leaves the function above."""

        def arrives(gradients: tuple[Any, ...]) -> None:
            note(gradients[edge.output])

        def leaves(gradients: tuple[Any, ...], _: Any) -> None:
            note(gradients[index])

        def note(gradient: Any) -> None:
            if _is_readable(gradient):
                state.half = state.half or gradient.dtype in HALF
                state.passed.append(_summary(gradient))

        index = 0 if above is None else graph_inputs(above)[0][0]  # of its only input in the graph
        node, hook = (edge.node, arrives) if above is None else (above, leaves)
        register = node.register_prehook if above is None else node.register_hook
        undo: Callable[[], None] = register(EngineHook(hook, self._guard)).remove
        return undo

    def backward_ends(self, micro_batch: OpenMicroBatch, reached: list[OptimizerWindow]) -> None:
        """Join the parts of a micro-batch, or note a new one."""
        present = (reference() for reference in micro_batch.input_leaves)
        leaves = [leaf for leaf in present if leaf is not None]
        state, passing, self._thread.passing = self._thread.open, self._thread.passing, None
        is_whole = False
        if state is not None and passing is not None and passing[0] is micro_batch:
            state.passed_size += passing[1]
            if state.passed_size < state.size:
                state.passes.append(micro_batch)
                return
            self._thread.open = None
            if state.passes and len(state.parts) > 1:
                return  # several micro-batches, whose gradients are passed on one by one
            self._join(state, micro_batch, reached)
            is_whole = True
        elif state is not None and state.is_of_whole and micro_batch.terms:
            self._thread.open = None  # its leaf is an input that nothing computed
        if 0 < len(leaves) <= MOST_LEAVES and _shows_its_losses(micro_batch):
            state = self._thread.open = self._thread.open or _Open(
                number=self._thread.number, is_of_whole=is_whole
            )
            if sum(len(part.terms) for part in state.parts) < MOST_PARTS:
                state.add(micro_batch, leaves)

    def _join(
        self, state: _Open, micro_batch: OpenMicroBatch, reached: list[OptimizerWindow]
    ) -> None:
        """Make one micro-batch of all parts: the last one, with the losses of the others."""
        first, parts = state.parts[0], [*state.parts, *state.passes]
        summaries = [leaf.summary for leaf in state.leaves]
        micro_batch.terms = [term for part in state.parts for term in part.terms]
        for term in micro_batch.terms:
            before = term.passed_on
            term.passed_on = PassedOn(summaries, state.passed, state.half, state.size, before)
        micro_batch.missing.pop("terms", None)
        micro_batch.relayed = False
        micro_batch.scale, micro_batch.scaler = first.scale, first.scaler
        micro_batch.targets = joined([part.targets for part in state.parts])
        micro_batch.task = first.task
        for part in parts:
            reasons = {n: r for n, r in part.missing.items() if n not in ("terms", "loss")}
            micro_batch.missing = {**reasons, **micro_batch.missing}
            micro_batch.backward_ms = (micro_batch.backward_ms or 0.0) + (part.backward_ms or 0.0)
            micro_batch.reductions |= part.reductions
            if micro_batch.collectives is not None and part.collectives is not None:
                micro_batch.collectives += part.collectives
        for window in self._windows.of_this_thread():
            _replace_parts(window, parts, micro_batch, window in reached)


def _replace_parts(
    window: OptimizerWindow, parts: list[OpenMicroBatch], whole: OpenMicroBatch, reached: bool
) -> None:
    """Count the whole micro-batch in a window instead of its parts."""
    counted = window.micro_batches
    in_window = [c for c in counted if any(c.micro_batch is part for part in parts)]
    if not in_window:
        return
    first, last, start = in_window[0], in_window[-1], counted.index(in_window[0])
    window.micro_batches = [c for c in counted if all(c is not part for part in in_window)]
    if not reached:
        added = CountedMicroBatch(whole, window=id(window), call=last.call)
        added.sample_after, added.half = last.sample_after, last.half
        window.micro_batches.append(added)
    counted_whole = window.micro_batches[-1]
    counted_whole.fresh, counted_whole.sample_before = first.fresh, first.sample_before
    counted_whole.changed = first.changed
    for event in window.events:
        event.after = min(event.after, start)


def _shows_its_losses(micro_batch: OpenMicroBatch) -> bool:
    """Whether its losses are visible, and all reach the same optimizers."""
    visible = all(term.inferred is None for term in micro_batch.terms)
    complete = "terms" not in micro_batch.missing and micro_batch.reach is None
    return bool(micro_batch.terms) and visible and complete


def _starts(
    micro_batch: OpenMicroBatch, roots: tuple[Any, ...], state: _Open
) -> list[tuple[Edge, Any]]:
    """The outputs whose gradients a backward passes on, each with the function that makes them.

    That is None if the caller passed them in.
    """
    edges = [
        Edge(root.grad_fn, root.output_nr)
        for root in roots
        if isinstance(root, torch.Tensor) and root.grad_fn is not None
    ]
    if len(edges) < len(roots) or not edges:
        return []
    if micro_batch.relayed and not micro_batch.terms:
        return [(edge, None) for edge in edges]
    product = product_with_tensor(edges[0].node) if len(edges) == 1 else None
    if product is not None and any(leaf.holds(product[1]) for leaf in state.leaves):
        return [(below, product[0]) for _, below in graph_inputs(product[0])]
    terms, number = micro_batch.terms, state.number
    # another loss beside the function would be lost
    hidden = len(terms) == 1 and terms[0].inferred is not None
    opaque = find_opaque(edges[0]) if hidden and len(edges) == 1 else None
    if opaque is None or call_of(opaque.node) is not None:
        return []
    inputs = [below for _, below in graph_inputs(opaque.node)]
    if len(inputs) != 1 or (sequence_number(inputs[0].node) or number) >= number:
        return []
    return [(inputs[0], opaque.node)]
