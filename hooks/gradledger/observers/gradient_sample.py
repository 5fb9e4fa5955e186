"""Observes a few gradient coordinates: what the loop does to gradients after backward.

Up to 16 coordinates of each of four parameters, copied after every backward and before the step.
Their common ratio is the post-backward factor ``a_r``: unscaling, manual scaling, clipping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradledger.capture.open_records import OpenMicroBatch, OpenStep
from gradledger.observers import optimizer_buffers
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import Track


class GradientSample(Observer):
    """Fills what the sample tells: ``post_factor``, ``zero_share``, ``noise``, ``repeat``."""

    facts = ("post_factor", "zero_share", "noise")

    def backward_ends(self, micro_batch: OpenMicroBatch, touched: list[Track]) -> None:
        """Sample the gradients that this backward added to."""
        for track in touched:
            if track.micro_batches and not track.unseen:
                last = track.micro_batches[-1]  # the track is emptied when its optimizer is dropped
                last.after = track.sample()

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """Sample once more what the optimizer is about to apply."""
        step.sample_at_step = track.sample_at_last_step = track.sample()
        track.coordinates.release()
        last = step.micro_batches[-1] if step.micro_batches else None
        if last is not None and last.after is None and last.micro_batch.number == track.counted:
            last.after = step.sample_at_step  # a step taken by a hook while backward still runs
        if optimizer_buffers.steps_on_own_buffers(step, track):
            optimizer_buffers.tell(step)
