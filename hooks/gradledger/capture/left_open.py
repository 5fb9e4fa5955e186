"""Which windows no step closed until the process ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gradledger.capture.async_copy import values_soon
from gradledger.capture.gradient_probe import copy_coordinates

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow

# Backwards that are reported if no step follows: more than these (of lines of steps), times usual.
LEFT_OPEN, AGAIN, TIMES_USUAL = 64, 16, 8


def is_abandoned(window: OptimizerWindow) -> bool:
    """Whether scaled gradients of the open window were zeroed after a clip read their norm."""
    clipped = any(event.op == "clip_norm" for event in window.events)
    zeroed = any(counted.fresh for counted in window.micro_batches[1:])
    scaled = any(counted.micro_batch.scale is not None for counted in window.micro_batches)
    return clipped and zeroed and scaled and window.optimizer is not None


def note_awaited(window: OptimizerWindow, windows: Iterable[OptimizerWindow]) -> None:
    """Note the micro-batches that other optimizers will step on, as far as it is known by now.

    Those of the windows that they have open, since their gradients were zeroed.
    """
    if len(window.micro_batches) < 2:  # none can have been zeroed
        return
    awaited: set[int] = set()
    for other in windows:
        for counted in reversed(other.micro_batches if other is not window else ()):
            awaited.add(id(counted.micro_batch))
            if counted.fresh:
                break
    for counted in window.micro_batches if awaited else ():
        counted.awaited = id(counted.micro_batch) in awaited


def is_left_open(window: OptimizerWindow) -> bool:
    """Whether far more backwards than usual are in the window, and nothing updated it.

    Of an optimizer that the script has dropped, no parameter can be read: an update after the last
    backward would not be noticed, and one in between is.
    """
    most = AGAIN if window.code.are_stepped(window.micro_batches) else LEFT_OPEN
    most, count = max(most, TIMES_USUAL * window.largest), len(window.micro_batches)
    if count <= most or window.by_hand or window.partial:
        return False
    if any(counted.changed for counted in window.micro_batches):
        return False
    if window.optimizer is None:
        return True
    probed = window.probed_parameters
    if not probed or window.read_versions() != window.versions:
        return False
    if window.initial is None:
        return True
    now = copy_coordinates(probed)
    values = None if now is None else values_soon([window.initial, now])
    return values is not None and values[0] == values[1]
