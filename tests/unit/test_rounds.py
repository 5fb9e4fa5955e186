"""Between which steps of several optimizers others may pass."""

from __future__ import annotations

import torch

from gradledger.capture.open_records import OpenMicroBatch
from gradledger.capture.optimizer_rounds import Rounds
from gradledger.capture.windows import Track


def test_an_order_in_which_nobody_steps_once_cannot_be_numbered_and_promises_nothing() -> None:
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]) for _ in range(2)]
    one, other = tracks = [Track(optimizer) for optimizer in optimizers]
    rounds = Rounds(tracks)
    for _ in range(3):
        for track, leaves_open in ((one, other), (other, one), (one, other), (other, None)):
            track.steps += 1
            track.micro_batches.clear()
            if leaves_open is not None:
                leaves_open.add(OpenMicroBatch(1))
            rounds.add(track)
            assert rounds.begins is None and not rounds.as_before and not rounds.repeated
        assert rounds.ended
