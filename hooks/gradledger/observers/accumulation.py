"""Observes whether others accumulate when an optimizer steps: Accelerate, or another optimizer.

An optimizer that was given to ``Accelerator.prepare`` steps only at the end of a window. One that
was not steps at once, inside ``accumulate()``, too.
"""

from __future__ import annotations

import sys
from typing import Any

from gradledger.capture.open_records import CountedMicroBatch, OpenStep
from gradledger.capture.open_terms import shares_loss
from gradledger.observers.base import Observer


class Accumulation(Observer):
    """Fills ``accumulating`` and ``stepped_each``."""

    facts = ("accumulating", "stepped_each")

    def step_begins(self, step: OpenStep, window: Any) -> None:
        """What Accelerate states at this moment, if it is in use; and who stepped before."""
        if _of_accelerate().get("sync_gradients") is False:
            step.fields["accumulating"] = True
        other = _stepping_on_each(step.micro_batches, step.optimizer)
        if other is not None:
            step.fields["stepped_each"] = other


def divisor_of_accelerate() -> int | None:
    """By how many micro-batches its backward divides, if by several."""
    settings = _of_accelerate().get("plugin_kwargs")
    steps = settings.get("num_steps") if isinstance(settings, dict) else None
    return steps if isinstance(steps, int) and steps > 1 else None


def _of_accelerate() -> dict[str, Any]:
    """What Accelerate states of its windows; nothing, if it is not in use."""
    state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    shared = getattr(state, "_shared_state", None)  # an instance would create the state
    return shared if isinstance(shared, dict) else {}


def _stepping_on_each(micro_batches: list[CountedMicroBatch], index: int) -> int | None:
    """Another optimizer that has stepped on every micro-batch of this window alone.

    ``index`` is that of the window's optimizer. On the last one the other may step after it. It
    counts only if a loss reaches both.
    """
    held = micro_batches[:-1] if len(micro_batches) > 2 else micro_batches
    if len(micro_batches) < 2:
        return None
    alone = (
        {other for other, was_all in counted.micro_batch.stepped_by.items() if was_all}
        for counted in held
    )
    others = set.intersection(*alone) - {index}
    return min((other for other in others if _share_loss(held, other)), default=None)


def _share_loss(held: list[CountedMicroBatch], other: int) -> bool:
    batches = ((counted.micro_batch, counted.window) for counted in held)
    return all(shares_loss(b.terms, b.reach, window, other) for b, window in batches)
