"""Losses that hide their graph, as terms: what is known at once, and what backward shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from gradledger.capture.async_copy import Deferred
from gradledger.capture.open_terms import HALF
from gradledger.observers.losses.found_losses import Edge, graph_inputs
from gradledger.observers.losses.node_names import PARAMETER, RESHAPES
from gradledger.observers.losses_out_of_sight.calls import call_of
from gradledger.observers.losses_out_of_sight.inference import (
    ODDS,
    Evidence,
    Law,
    Sample,
    Size,
    Window,
    token_weight,
)
from gradledger.records import Term

DECLARE = "declare it with ledger.micro_batch(tokens=..., reduction=...)"
BARE = "NllLoss:"  # before the name of a function that is a cross entropy against class indices
_TO_PARAMETER = RESHAPES | {"TBackward0", "ExpandBackward0"}
_MAX_TO_PARAMETER = 8  # nodes between a function and a parameter that it uses
_CERTAINTY = ODDS / (1 + ODDS)
_SUMS_AGREE = 1e-4  # of the entries of a row, in fp32
_EXACT = (torch.float32, torch.float64)

Hook = Callable[..., None]
GuardHook = Callable[[Hook], Hook]


def reduces_by_itself(edge: Edge) -> bool:
    """Whether a custom function, or a compiled graph, returns one number of what is no number."""
    if not isinstance(edge.node, BackwardCFunction) or edge.shape != ():
        return False
    if call_of(edge.node) is not None:
        return True
    inputs = [below for _, below in graph_inputs(edge.node)]
    return bool(inputs) and all(below.shape for below in inputs)


def data_input(node: Any) -> tuple[int, Edge] | None:
    """The one input of a function that is no parameter, if each of its rows may be a token.

    A function with more than one matrix of parameters may be a layer, which mixes rows.
    """
    data, matrices = [], 0
    for index, below in graph_inputs(node):
        if not _is_parameter(below):
            data.append((index, below))
        elif len(below.shape) > 1:
            matrices += 1
    return data[0] if len(data) == 1 and matrices < 2 else None


def _is_parameter(edge: Edge) -> bool:
    node = edge.node
    for _ in range(_MAX_TO_PARAMETER):
        if node.name() == PARAMETER:
            return True
        if node.name() not in _TO_PARAMETER or len(graph_inputs(node)) != 1:
            return False
        node = graph_inputs(node)[0][1].node
    return False


@dataclass(slots=True)
class Inferred:
    """A term whose reduction is inferred, while its values are on the way."""

    function: str
    evidence: Evidence = field(default_factory=Evidence)  # of all calls of the function
    alone: bool = False  # only factors are between the root of backward and the function
    root: Deferred | None = None
    upstream: Deferred | None = None  # the gradient at the function
    shape: tuple[int, ...] = ()  # of the input: tokens, then their entries
    rows: Deferred | None = None  # see ``row_summary``
    reason: str | None = None  # why nothing can be inferred
    _window: Window | None = None

    def add_evidence(self, windows: dict[str, Window]) -> None:
        """Add what this micro-batch shows, once. ``windows``: of each function."""
        if self._window is not None or self.reason is not None:
            return
        self._window = windows.setdefault(self.function, Window())
        if not self.alone:
            self.reason = f"{self.function} hides its graph beside other losses"
        elif not _copied(self.root, self.upstream, self.rows):
            self.reason = f"backward did not reach {self.function}"
        else:
            self._add(self.upstream.value(), self.root.value())  # type: ignore[union-attr]

    def _add(self, upstream: float, root: float) -> None:
        if not upstream or not math.isfinite(upstream) or not math.isfinite(root):
            return
        size = self._size()
        if not size.tokens:
            return
        mass = self._mass() / abs(upstream)
        sample = Sample(size, root / upstream, mass, upstream, self._is_half())
        self.evidence.add(sample)
        assert self._window is not None
        self._window.samples.append(sample)
        weight = self._exact_weight(upstream, root)
        if weight is not None:
            self.evidence.add_exact(size.tokens, weight / upstream)

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later; that of the root is the micro-batch's."""
        for item in (self.upstream, self.rows):
            if item is not None:
                yield item

    def resolve(self, term: Term) -> None:
        """Fill tokens, weight and reduction of the wire record, or state why they are not known."""
        self.add_evidence({})
        if self.reason is not None:
            term.missing["weight"] = f"{self.reason}: {DECLARE}"
            return
        assert self.upstream is not None and self.root is not None
        size, upstream = self._size(), self.upstream.value()
        term.tokens = size.tokens
        if not size.tokens or not upstream:
            return
        weight = self._exact_weight(upstream, self.root.value())
        law = self.evidence.law()
        if self.evidence.proved and weight is not None:
            term.kind, term.weight = BARE + term.kind, weight
            term.reduction = _reduction(weight / upstream, size.tokens)
            term.inferred = "exact: the rows of its gradient are those of a cross entropy"
        elif law is not None and self._window is not None and not self._window.counts_are_known:
            term.missing["weight"] = f"{self.function} {_COUNTS_DIFFER}: {DECLARE}"
        elif law is not None:
            self._resolve_law(term, size, upstream, law)
        else:
            term.missing["weight"] = f"{self._undecided()}: {DECLARE}"

    def _resolve_law(self, term: Term, size: Size, upstream: float, law: Law) -> None:
        term.weight = upstream / size.divisor(law)
        term.reduction = law if law in ("mean", "sum") else "none"
        count = len(self.evidence.samples)
        term.inferred = f"{_WORDS[law]}: {_CERTAINTY:.2%} sure after {count} micro-batches"
        term.missing["scale"] = (
            f"{self.function} hides its graph: its value shows with {_CERTAINTY:.2%} certainty "
            f"that it is {_WORDS[law]}, not whether it multiplies by a further factor"
        )

    def _undecided(self) -> str:
        count = len(self.evidence.samples)
        return (
            f"{self.function} hides its graph, and {count} micro-batches do not yet show whether "
            "it is a mean or a sum"
        )

    def _size(self) -> Size:
        assert self.rows is not None
        rows = math.prod(self.shape[:-1]) if len(self.shape) > 1 else self.shape[0]
        return Size(round(self.rows.values()[0]), rows, self.shape[0])

    def _is_half(self) -> bool:
        """Whether half precision between the root and the function rounds the factors."""
        values = (self.root, self.upstream)
        return any(value is not None and value.dtype in HALF for value in values)

    def _mass(self) -> float:
        assert self.rows is not None
        return self.rows.values()[1]

    def _exact_weight(self, upstream: float, root: float) -> float | None:
        assert self.rows is not None
        tokens, _, exact, *errors = self.rows.values()
        if not exact or upstream <= 0 or not tokens:
            return None
        guesses = (upstream / tokens, upstream)
        return token_weight([error for error in errors if error], root, guesses)


_COUNTS_DIFFER = (
    "hides its graph: some rows of its input got no gradient, and the factors of the loop do not "
    "follow the number of those that did, so whether the others are tokens is not known"
)
_WORDS: dict[Law, str] = {
    "mean": "a mean over its tokens",
    "sum": "a sum over its tokens",
    "rows": "a sum divided by all positions",
    "first": "a sum divided by the first dimension",
}


def _reduction(ratio: float, tokens: int) -> Any:
    if abs(ratio * tokens - 1) < 1e-3:
        return "mean"
    return "sum" if abs(ratio - 1) < 1e-3 else "none"


def _copied(*items: Deferred | None) -> bool:
    return all(item is not None and not item.has_no_copy for item in items)


def watch_rows(
    node: Any, index: int, inferred: Inferred, guard_hook: GuardHook
) -> list[Callable[[], None]]:
    """Read the gradient that arrives at a function, and the rows of the one that leaves it."""

    def before(grads: tuple[Any, ...]) -> None:
        if grads[0] is not None:
            inferred.upstream = Deferred(grads[0], volatile=True)

    def after(gradients: tuple[Any, ...], _: Any) -> None:
        gradient = gradients[index]
        if gradient is None or gradient.layout is not torch.strided or not gradient.dim():
            inferred.reason = f"the gradient that leaves {inferred.function} is no dense tensor"
        elif gradient.dtype == torch.float16:
            inferred.reason = f"in fp16, a token of {inferred.function} may have no gradient"
        else:
            inferred.shape = tuple(gradient.shape)
            inferred.rows = Deferred(row_summary(gradient.detach()))

    return [
        node.register_prehook(guard_hook(before)).remove,
        node.register_hook(guard_hook(after)).remove,
    ]


def row_summary(gradient: torch.Tensor) -> torch.Tensor:
    """[tokens, size, whether the rows are those of a cross entropy of logits, then their errors].

    The size is the sum of the absolute values of all entries.

    The errors of all rows in order, 0 of a row that does not count: the weight times 1 - p.
    """
    entries = gradient if gradient.dim() > 1 else gradient[:, None]
    wide = torch.promote_types(entries.dtype, torch.float32)
    sizes = torch.linalg.vector_norm(entries, 1, dim=-1, dtype=wide)
    tokens = torch.count_nonzero(sizes).to(wide)
    if entries.dtype not in _EXACT or entries.shape[-1] < 2:
        return torch.stack([tokens, sizes.sum(), torch.zeros_like(tokens)])
    errors = -entries.amin(-1)
    balanced = entries.sum(-1).abs() <= _SUMS_AGREE * sizes
    single = (sizes - 2 * errors).abs() <= _SUMS_AGREE * sizes
    exact = (balanced & single).all().to(wide)
    return torch.cat([torch.stack([tokens, sizes.sum(), exact]), errors.reshape(-1)])
