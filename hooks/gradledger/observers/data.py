"""Observes the data: a fingerprint of each micro-batch's loss targets, taken on the device.

Two ranks that were fed the same data, or an epoch that repeats the last one's order, show equal
fingerprints. The targets themselves never leave the device.
"""

from __future__ import annotations

from typing import Any

import torch

from gradledger.deferred import Deferred
from gradledger.ledger import OpenMicroBatch
from gradledger.observers.base import Observer
from gradledger.observers.loss_nodes import target_of

MOST = 1024  # elements that are read


class Data(Observer):
    """Fills ``fingerprint`` and ``constant_target``; told of loss nodes by ``LossTerms``."""

    facts = ("fingerprint", "constant_target")

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[int, torch.device], torch.Tensor] = {}

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
        return torch.dot(flat.to(torch.float32), self._place(flat.numel(), flat.device))

    def _place(self, count: int, device: torch.device) -> torch.Tensor:
        """Fixed irregular factors, one for each place, so that order counts."""
        key = (count, device)
        if key not in self._places:
            if len(self._places) > 256:
                self._places.clear()
            index = torch.arange(1, count + 1, dtype=torch.float64)
            self._places[key] = (index * 0.6180339887498949).frac().to(device, torch.float32)
        return self._places[key]
