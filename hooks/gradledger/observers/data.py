"""Observes the data: a fingerprint of each micro-batch's loss targets.

Two ranks that were fed the same data, or an epoch that repeats the last one's order, show equal
fingerprints. A few targets are copied; only a number made of them leaves the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from gradledger import sampling
from gradledger.ledger import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.windows import Track

MOST = 64  # targets that are copied, evenly spread


class Data(Observer):
    """Fills ``fingerprint`` and ``constant_target`` of micro-batches, and ``sampler`` of steps."""

    facts = ("fingerprint", "constant_target", "sampler")

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

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Copy targets of the first loss that has some."""
        for term in micro_batch.terms:
            target, term.target = term.target, None
            if target is not None and micro_batch.targets is None:
                micro_batch.targets = sampling.read(target, MOST)


def _kind_of(sampler: Any) -> str | None:
    """Whether a sampler means to shuffle; None where only its author knows."""
    shuffle = getattr(sampler, "shuffle", None)  # DistributedSampler
    if isinstance(shuffle, bool):
        return "random" if shuffle else "sequential"
    name = type(sampler).__name__
    if "Random" in name:
        return "random"
    return "sequential" if name == "SequentialSampler" else None
