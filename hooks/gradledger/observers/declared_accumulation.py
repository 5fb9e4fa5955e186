"""Observes whether a library states that a step comes too early: Accelerate accumulates still.

An optimizer that was given to ``Accelerator.prepare`` steps only at the end of a window. One that
was not steps at once, inside ``accumulate()``, too.
"""

from __future__ import annotations

import sys
from typing import Any

from gradledger.capture.open_records import OpenStep
from gradledger.observers.base import Observer


class DeclaredAccumulation(Observer):
    """Fills ``accumulating``."""

    facts = ("accumulating",)

    def step_begins(self, step: OpenStep, window: Any) -> None:
        """What Accelerate states at this moment; nothing if it is not in use."""
        state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
        shared = getattr(state, "_shared_state", None)  # an instance would create the state
        if isinstance(shared, dict) and shared.get("sync_gradients") is False:
            step.fields["accumulating"] = True
