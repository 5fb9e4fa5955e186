"""Observes where the data comes from: the kind of sampler that a DataLoader draws from.

The data themselves are told apart by fingerprints of the loss's targets (``loss_terms``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from gradledger.ledger import OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.windows import Track


class Data(Observer):
    """Fills ``sampler`` of steps."""

    facts = ("sampler",)

    def __init__(self) -> None:
        super().__init__()
        self._sampler: str | None = None

    def install(self) -> None:
        """Notice which sampler a DataLoader draws from."""
        self.patch(DataLoader, "__iter__", self._wrap_iter)

    def _wrap_iter(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:
            with self.safely():
                if torch.is_grad_enabled():  # an evaluation's loader says nothing of training
                    self._sampler = _kind_of(getattr(loader, "sampler", None))
            return original(loader)

        return __iter__

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """The sampler that the window's data came from, as far as is known."""
        if self._sampler is not None:
            step.fields["sampler"] = self._sampler


def _kind_of(sampler: Any) -> str | None:
    """Whether a sampler means to shuffle; None where only its author knows."""
    shuffle = getattr(sampler, "shuffle", None)  # DistributedSampler
    if isinstance(shuffle, bool):
        return "random" if shuffle else "sequential"
    name = type(sampler).__name__
    if "Random" in name:
        return "random"
    return "sequential" if name == "SequentialSampler" else None
