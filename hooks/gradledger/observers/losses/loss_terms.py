"""Observes which losses a backward starts from, over how many tokens, and with what weight."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch

from gradledger import guard
from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain, isolated, local_part, never_compile
from gradledger.capture.open_records import OpenMicroBatch, OpenTerm
from gradledger.observers.base import Observer
from gradledger.observers.losses.autograd_graph import (
    REDUCTIONS,
    Found,
    find_losses,
    find_opaque,
    head_of,
)
from gradledger.observers.losses.loss_nodes import (
    Declared,
    open_term,
    watch_declared,
    watch_upstream,
)

if TYPE_CHECKING:
    from gradledger.capture.windows import Track

MAX_TERMS = 256
MAX_TARGETS = 64  # that are copied, evenly spread, for a fingerprint of the data
TOO_MANY = f"more than {MAX_TERMS} loss nodes in one backward"
COMPILED_AUTOGRAD = "backward runs under compiled autograd, which would compile our hooks each time"
FREED = "already been freed"  # in what PyTorch raises for a saved tensor of such a graph
DECLARE = "declare it with ledger.micro_batch(tokens=..., reduction=...)"


class _EngineHook:
    """A hook of an autograd node that may fail, and that modes of the script do not see.

    It takes no lock: the thread that holds it may be waiting for this very backward.
    """

    __slots__ = ("_guard", "_hook")

    def __init__(self, hook: Callable[..., None], around: guard.fail_open) -> None:
        self._hook, self._guard = hook, around

    @never_compile
    def __call__(self, *args: Any) -> None:
        with isolated(), self._guard:
            self._hook(*args)


class _OfThread(threading.local):
    declared: Declared | None = None  # what the script declared of its next backward


class LossTerms(Observer):
    """Fills ``loss`` and ``terms`` of every micro-batch, and samples the targets."""

    facts = ("loss", "terms", "fingerprint", "constant_target")

    def __init__(self) -> None:
        super().__init__()
        self._now = _OfThread()

    def declare(self, tokens: Any, reduction: Literal["mean", "sum"], scale: float) -> None:
        """The next backward starts from a loss like this one."""
        on_device = isinstance(tokens, torch.Tensor)
        count = Deferred(tokens, volatile=True) if on_device else int(tokens)
        self._now.declared = Declared(count, reduction, float(scale))

    def wake(self, tracks: list[Track]) -> None:
        """What was declared of a backward that was not watched says nothing of another."""
        super().wake(tracks)
        self._now = _OfThread()

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Walk the graph below each root, wait at its loss nodes, and copy what they tell."""
        declared, self._now.declared = self._now.declared, None
        strange = next((root for root in roots if not _is_readable(root)), None)
        if strange is not None:
            reason = f"backward starts from a {type(strange).__name__}, which holds no numbers"
            micro_batch.missing.update({"terms": reason, "loss": reason})
            return
        if _under_compiled_autograd():
            micro_batch.missing["terms"] = COMPILED_AUTOGRAD
            self._copy_loss(micro_batch, roots)
            return
        graphs = [graph for graph in map(_graph_of, roots) if graph is not None]
        if declared is not None and len(graphs) == 1:
            self._declare(micro_batch, graphs[0], declared)
        else:
            self._find(micro_batch, graphs)
        if not micro_batch.terms:
            micro_batch.missing.setdefault("terms", _why_none(graphs))
        self._copy_loss(micro_batch, roots)
        self._copy_target(micro_batch)

    @staticmethod
    def _copy_loss(micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        if len(roots) == 1 and isinstance(roots[0], torch.Tensor) and roots[0].numel() == 1:
            # a copy: loops sum their losses in place, into the first one's memory
            micro_batch.loss = Deferred(roots[0], volatile=True)
        else:
            micro_batch.missing["loss"] = "backward did not start from one scalar"

    @staticmethod
    def _copy_target(micro_batch: OpenMicroBatch) -> None:
        """Some targets of the first loss that has any, while they are in hand."""
        for term in micro_batch.terms:
            target, term.target = term.target, None
            if target is not None and micro_batch.targets is None:
                micro_batch.targets = gradient_probe.read(target, MAX_TARGETS)

    def backward_nested(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Reentrant checkpointing makes the graph of what it wraps only now: is a loss in it?

        Bare reductions are left alone, since what is checkpointed is mostly a model's layer.
        """
        declared = any(term.kind == Declared.KIND for term in micro_batch.terms)
        if declared or micro_batch.missing.get("terms") == TOO_MANY:
            return
        for root in roots:
            graph = _graph_of(root)
            if graph is not None and _is_readable(root):
                found = [f for f in find_losses(graph) if f.name not in REDUCTIONS]
                terms = self._watch(micro_batch, found)
                _number_heads(found[: len(terms)], terms)
                for term in terms:
                    # what lies between it and the outer root, or below it, is not known
                    term.undivided = term.coefficient = None
                    term.head = 0 if term.head is not None else None
                    micro_batch.missing.pop("terms", None)

    def _find(self, micro_batch: OpenMicroBatch, graphs: list[Any]) -> None:
        """Look for loss nodes below each root."""
        try:
            for graph in graphs:
                self._watch(micro_batch, find_losses(graph, scaled=micro_batch.scale is not None))
        except RuntimeError as error:
            if FREED not in str(error):
                raise
            micro_batch.terms.clear()  # PyTorch refuses this backward, or does not get that far
            micro_batch.missing["terms"] = "an earlier backward has freed the graph of the loss"

    def _watch(self, micro_batch: OpenMicroBatch, found: list[Found]) -> list[OpenTerm]:
        if len(found) + len(micro_batch.terms) > MAX_TERMS:
            micro_batch.missing["terms"] = TOO_MANY
            micro_batch.terms.clear()
            return []
        terms = [open_term(loss) for loss in found]
        if len(found) > 1:
            _number_heads(found, terms)
        for loss, term in zip(found, terms, strict=True):
            micro_batch.undo += watch_upstream(loss, term, micro_batch.lent, self._on_engine)
        micro_batch.terms += terms
        return terms

    def _on_engine(self, hook: Callable[..., None]) -> Callable[..., None]:
        return _EngineHook(hook, self._guard)

    def _declare(self, micro_batch: OpenMicroBatch, root: Any, declared: Declared) -> None:
        """The declaration speaks of the hidden part where there is one, else of the root."""
        if micro_batch.scale is not None:
            root = root.next_functions[0][0]  # the GradScaler's product: the loss is below it
        node, output = find_opaque(root) or (root, 0)
        term = OpenTerm(Declared.KIND, declared.reduction, declared.tokens)
        micro_batch.undo.append(watch_declared(node, output, term, declared.scale, self._on_engine))
        micro_batch.terms.append(term)


def _graph_of(root: Any) -> Any:
    """The autograd node that a backward starts at, from a tensor or a ``GradientEdge``."""
    return getattr(root, "grad_fn", None) if isinstance(root, torch.Tensor) else root.node


def _is_readable(root: Any) -> bool:
    return not isinstance(root, torch.Tensor) or is_plain(local_part(root))


def _under_compiled_autograd() -> bool:
    """Whether a compiler takes this backward; looked up anew, since it is imported late."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(getattr(module, "compiled_autograd_enabled", False))


def _number_heads(found: list[Found], terms: list[OpenTerm]) -> None:
    numbers: dict[int, int] = {}
    for loss, term in zip(found, terms, strict=True):
        head = head_of(loss)
        if head is not None:
            term.head = numbers.setdefault(id(head), len(numbers) + 1)


def _why_none(roots: list[Any]) -> str:
    opaque = next(filter(None, map(find_opaque, roots)), None)
    if opaque is None:
        return "no loss node was found below the root of backward"
    return f"the loss is computed inside {opaque[0].name()}, where it cannot be seen: {DECLARE}"
