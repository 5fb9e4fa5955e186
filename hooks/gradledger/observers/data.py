"""Observes the data: a fingerprint of each micro-batch's loss targets, taken on the device.

Two ranks that were fed the same data, or an epoch that repeats the last one's order, show equal
fingerprints. The targets themselves never leave the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from gradledger.deferred import Deferred
from gradledger.ledger import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer
from gradledger.observers.loss_nodes import target_of

if TYPE_CHECKING:
    from gradledger.windows import Track

MOST = 1024  # elements that are read


class Data(Observer):
    """Fills ``fingerprint`` and ``constant_target`` of micro-batches, and ``sampler`` of steps."""

    facts = ("fingerprint", "constant_target", "sampler")

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[torch.device, torch.Tensor] = {}
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
        """Fingerprint the targets of the first loss node that has some."""
        for node in micro_batch.nodes:
            target = target_of(node)
            if target is not None and target.numel():
                flat = target.detach().reshape(-1)[:MOST]
                micro_batch.fingerprint = Deferred(self._fingerprint(flat))
                if flat.is_floating_point():
                    micro_batch.constant_target = Deferred((flat == flat[0]).all())
                return

    def _fingerprint(self, flat: torch.Tensor) -> torch.Tensor:
        return torch.dot(flat.to(torch.float32), self._place(flat.device)[: flat.numel()])

    def _place(self, device: torch.device) -> torch.Tensor:
        """Fixed irregular factors, one for each place, so that order counts."""
        if device not in self._places:
            index = torch.arange(1, MOST + 1, dtype=torch.float64)
            self._places[device] = (index * 0.6180339887498949).frac().to(device, torch.float32)
        return self._places[device]


def _kind_of(sampler: Any) -> str | None:
    """Whether a sampler means to shuffle; None where only its author knows."""
    shuffle = getattr(sampler, "shuffle", None)  # DistributedSampler
    if isinstance(shuffle, bool):
        return "random" if shuffle else "sequential"
    name = type(sampler).__name__
    if "Random" in name:
        return "random"
    return "sequential" if name == "SequentialSampler" else None
