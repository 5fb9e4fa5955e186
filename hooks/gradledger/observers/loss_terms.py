"""Observes which losses a backward starts from, over how many tokens, and with what weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from gradledger import sampling
from gradledger.deferred import Deferred
from gradledger.ledger import OpenMicroBatch, OpenTerm
from gradledger.observers.base import Observer
from gradledger.observers.loss_graph import REDUCTIONS, Found, find_losses, find_opaque, head_of
from gradledger.observers.loss_nodes import Declared, open_term, watch_declared, watch_upstream

if TYPE_CHECKING:
    from gradledger.windows import Track

MAX_TERMS = 256
MAX_TARGETS = 64  # that are copied, evenly spread, for a fingerprint of the data
TOO_MANY = f"more than {MAX_TERMS} loss nodes in one backward"
DECLARE = "declare it with ledger.micro_batch(tokens=..., reduction=...)"


class LossTerms(Observer):
    """Fills ``loss`` and ``terms`` of every micro-batch, and samples the targets."""

    facts = ("loss", "terms", "fingerprint", "constant_target")

    def __init__(self) -> None:
        super().__init__()
        self._declared: Declared | None = None  # what the script said of its next backward

    def declare(self, tokens: Any, reduction: Literal["mean", "sum"], scale: float) -> None:
        """The next backward starts from a loss like this one."""
        on_device = isinstance(tokens, torch.Tensor)
        count = Deferred(tokens, volatile=True) if on_device else int(tokens)
        self._declared = Declared(count, reduction, float(scale))

    def wake(self, tracks: list[Track]) -> None:
        """What was declared of a backward that was not watched says nothing of another."""
        super().wake(tracks)
        self._declared = None

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Walk the graph below each root, wait at its loss nodes, and copy what they tell."""
        graphs = [root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None]
        declared, self._declared = self._declared, None
        if declared is not None and len(graphs) == 1:
            self._declare(micro_batch, graphs[0], declared)
        else:
            for root in graphs:
                self._watch(micro_batch, find_losses(root, scaled=micro_batch.scale is not None))
        if not micro_batch.terms:
            micro_batch.missing.setdefault("terms", _why_none(graphs))
        if len(roots) == 1 and roots[0].numel() == 1:
            # a copy: loops sum their losses in place, into the first one's memory
            micro_batch.loss = Deferred(roots[0], volatile=True)
        else:
            micro_batch.missing["loss"] = "backward did not start from one scalar"

        self._copy_target(micro_batch)

    @staticmethod
    def _copy_target(micro_batch: OpenMicroBatch) -> None:
        """Some targets of the first loss that has any, while they are in hand."""
        for term in micro_batch.terms:
            target, term.target = term.target, None
            if target is not None and micro_batch.targets is None:
                micro_batch.targets = sampling.read(target, MAX_TARGETS)

    def backward_nested(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Reentrant checkpointing makes the graph of what it wraps only now: is a loss in it?

        Bare reductions are left alone, since what is checkpointed is mostly a model's layer.
        """
        declared = any(term.kind == Declared.KIND for term in micro_batch.terms)
        if declared or micro_batch.missing.get("terms") == TOO_MANY:
            return
        for root in roots:
            if getattr(root, "grad_fn", None) is not None:
                found = [f for f in find_losses(root.grad_fn) if f.name not in REDUCTIONS]
                terms = self._watch(micro_batch, found)
                _number_heads(found[: len(terms)], terms)
                for term in terms:
                    # what lies between it and the outer root, or below it, is not known
                    term.undivided = term.coefficient = None
                    term.head = 0 if term.head is not None else None
                    micro_batch.missing.pop("terms", None)

    def _watch(self, micro_batch: OpenMicroBatch, found: list[Found]) -> list[OpenTerm]:
        if len(found) + len(micro_batch.terms) > MAX_TERMS:
            micro_batch.missing["terms"] = TOO_MANY
            micro_batch.terms.clear()
            return []
        terms = [open_term(loss) for loss in found]
        if len(found) > 1:
            _number_heads(found, terms)
        for loss, term in zip(found, terms, strict=True):
            micro_batch.undo += watch_upstream(loss, term, micro_batch.lent)
        micro_batch.terms += terms
        return terms

    def _declare(self, micro_batch: OpenMicroBatch, root: Any, declared: Declared) -> None:
        """The declaration speaks of the hidden part where there is one, else of the root."""
        if micro_batch.scale is not None:
            root = root.next_functions[0][0]  # the GradScaler's product: the loss is below it
        node, output = find_opaque(root) or (root, 0)
        term = OpenTerm(Declared.KIND, declared.reduction, declared.tokens)
        micro_batch.undo.append(watch_declared(node, output, term, declared.scale))
        micro_batch.terms.append(term)


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
