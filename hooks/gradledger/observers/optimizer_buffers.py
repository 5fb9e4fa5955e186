"""Tells of an optimizer that steps on buffers of its own instead of the parameters it was given.

DeepSpeed's ZeRO puts flat shards into ``param_groups``, moves every gradient into its own buffers
and clears ``.grad``. That looks like a loop that zeroes each micro-batch, and is none.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gradledger.capture.open_records import OpenStep

if TYPE_CHECKING:
    from gradledger.capture.windows import Track

REASON = "the optimizer steps on buffers of its own, as DeepSpeed's ZeRO does"


def steps_on_own_buffers(step: OpenStep, track: Track) -> bool:
    """Whether none of the parameters that backward reached is the optimizer's any more."""
    if step.sample_at_step is not None or not step.micro_batches:
        return False  # the usual case: no need to look any further
    held = {id(parameter) for parameter in track.parameters()}
    return not any(id(parameter) in held for parameter in track.watched)


def tell(step: OpenStep) -> None:
    """All micro-batches count; what became of their gradients since is not known.

    ZeRO averages over the ranks, and leaves each of them a part of the gradients.
    """
    for counted in step.micro_batches:
        counted.after = None
    for counted in step.micro_batches[1:]:
        counted.fresh, counted.before = False, None
    step.fields["moved"] = True
    step.missing["post_factor"] = REASON
    if step.fields.get("sync") == "unknown" and "deepspeed" in sys.modules:
        step.fields["sync"] = "averaged"
        step.fields["sharded"] = True
