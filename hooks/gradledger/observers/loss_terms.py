"""Observes which losses a backward starts from, over how many tokens, and with what weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gradledger.deferred import Deferred
from gradledger.ledger import OpenMicroBatch
from gradledger.observers.base import Observer
from gradledger.observers.loss_graph import find_losses
from gradledger.observers.loss_nodes import open_term, watch_upstream

if TYPE_CHECKING:
    from gradledger.windows import Track

_HALF = (torch.float16, torch.bfloat16)
MAX_TERMS = 256


class LossTerms(Observer):
    """Fills ``loss`` and ``terms`` of every micro-batch."""

    facts = ("loss", "terms", "fingerprint", "constant_target")

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Walk the graph below each root and wait at its loss nodes."""
        for root in roots:
            if getattr(root, "grad_fn", None) is not None:
                self._watch(micro_batch, root.grad_fn)
        if not micro_batch.terms:
            micro_batch.missing["terms"] = "no loss node was found below the root of backward"
        if len(roots) == 1 and roots[0].numel() == 1:
            micro_batch.loss = Deferred(roots[0])
            micro_batch.half_precision = roots[0].dtype in _HALF
        else:
            micro_batch.missing["loss"] = "backward did not start from one scalar"

    def _watch(self, micro_batch: OpenMicroBatch, root: Any) -> None:
        found = find_losses(root, scaled=micro_batch.scale is not None)
        if len(found) > MAX_TERMS:
            micro_batch.missing["terms"] = f"more than {MAX_TERMS} loss nodes in one backward"
            return
        for loss in found:
            term = open_term(loss)
            micro_batch.undo.append(watch_upstream(loss, term).remove)
            micro_batch.terms.append(term)
            micro_batch.nodes.append(loss.smoothed or loss.node)

    def backward_ends(self, micro_batch: OpenMicroBatch, touched: list[Track]) -> None:
        """Half precision anywhere between root and loss rounds the weights."""
        for term in micro_batch.terms:
            if term.upstream is not None and term.upstream.dtype in _HALF:
                micro_batch.half_precision = True
