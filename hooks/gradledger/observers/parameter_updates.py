"""Observes parameters: whether replicas are still equal, and how far a step moves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradledger.capture.gradient_probe import copy_coordinates
from gradledger.capture.open_records import OpenStep
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow

EVERY = 10  # steps between two measurements


class ParameterUpdates(Observer):
    """Fills ``parameters`` (a fingerprint) and ``update_ratio`` on every tenth step."""

    facts = ("parameters", "update_ratio")

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample the parameters before the step."""
        if step.step % EVERY == 1:
            step.parameters_before = copy_coordinates(window.probed_parameters)

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample the parameters after the step."""
        if step.parameters_before is not None:
            step.parameters_after = copy_coordinates(window.probed_parameters)
