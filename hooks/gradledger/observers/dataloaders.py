"""Observes where the data comes from: a DataLoader's kind of sampler, and the batches it gave.

The data themselves are told apart by fingerprints of the loss's targets (``loss_terms``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from gradledger.capture.open_records import OpenStep
from gradledger.observers.base import Observer
from gradledger.observers.batches_drawn import Loads

if TYPE_CHECKING:
    from gradledger.capture.windows import Track, Windows


class Data(Observer):
    """Fills ``sampler``, ``batches`` and ``batch_size`` of steps."""

    facts = ("sampler", "batches", "batch_size")

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self._windows = windows
        self._sampler: str | None = None
        self._loads = Loads()

    def install(self) -> None:
        """Notice when a DataLoader is iterated."""
        self.patch(DataLoader, "__iter__", self._wrap_iter, always=True)

    def _wrap_iter(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:
            iterator = original(loader)
            if torch.is_grad_enabled():  # an evaluation's loader says nothing of training
                self.safely(self._begin, loader, iterator)
            return iterator

        return __iter__

    def _begin(self, loader: Any, iterator: Any) -> None:
        self._sampler = _kind_of(getattr(loader, "sampler", None))
        self._loads.begin(loader, iterator)

    def wake(self, tracks: list[Track]) -> None:
        """The batches of steps that were not watched are no news."""
        for track in tracks:
            self._loads.drawn(track)

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """The sampler and the batches that the window's data came from, as far as is known."""
        if self._windows.several_threads:  # which of them draws from a loader is not seen
            return
        if self._sampler is not None:
            step.fields["sampler"] = self._sampler
        drawn = self._loads.drawn(track)
        if drawn is not None:
            step.fields["batches"], step.fields["batch_size"] = drawn


def _kind_of(sampler: Any) -> str | None:
    """Whether a sampler means to shuffle; None where only its author knows."""
    shuffle = getattr(sampler, "shuffle", None)  # DistributedSampler
    if isinstance(shuffle, bool):
        return "random" if shuffle else "sequential"
    name = type(sampler).__name__
    if "Random" in name:
        return "random"
    return "sequential" if name == "SequentialSampler" else None
