"""Observes parameters: whether replicas are still equal, and how far a step moves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradledger.capture.gradient_probe import copy
from gradledger.capture.open_records import OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import Track

EVERY = 10  # steps between two measurements of the update ratio


class Updates(Observer):
    """Fills ``parameters`` (a fingerprint) and ``update_ratio`` on every tenth step."""

    facts = ("parameters", "update_ratio")

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """The sampled parameters as they are."""
        if step.step % EVERY == 1:
            step.values = copy(track.watched)

    def step_ends(self, step: OpenStep, track: Track) -> None:
        """And as the step left them."""
        if step.values is not None:
            step.values_after = copy(track.watched)
