"""Observes the global L2 norm of the gradients that the optimizer gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradledger.deferred import Deferred
from gradledger.ledger import OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.windows import Track


class Norm(Observer):
    """Fills ``norm``: one fused pass, or none when the loop's clipping has just computed it."""

    facts = ("norm",)

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """Take the norm of what is about to be applied."""
        if step.clips and step.clips[-1].whole and step.clips[-1].after == len(step.micro_batches):
            return  # the clip's total norm and coefficient give it, without a second pass
        gradients = [p.grad for p in track.parameters() if p.grad is not None]
        if any(g.is_sparse for g in gradients):
            step.missing["norm"] = "sparse gradients"
            return
        if gradients:
            local = [getattr(g, "_local_tensor", g).detach() for g in gradients]
            norms = torch._foreach_norm(local)
            device = norms[0].device
            step.norm = Deferred(
                torch.linalg.vector_norm(torch.stack([n.to(device) for n in norms]))
            )
