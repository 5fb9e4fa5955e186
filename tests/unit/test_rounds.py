"""Between which steps of several optimizers others may pass."""

from __future__ import annotations

import torch

from gradledger.capture.open_records import OpenMicroBatch
from gradledger.capture.optimizer_rounds import OptimizerRounds
from gradledger.capture.windows import OptimizerWindow


def test_an_order_in_which_nobody_steps_once_cannot_be_numbered_and_promises_nothing() -> None:
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]) for _ in range(2)]
    one, other = windows = [OptimizerWindow(optimizer) for optimizer in optimizers]
    rounds = OptimizerRounds(windows)
    for _ in range(3):
        for window, leaves_open in ((one, other), (other, one), (one, other), (other, None)):
            window.steps += 1
            window.micro_batches.clear()
            if leaves_open is not None:
                leaves_open.add_micro_batch(OpenMicroBatch(1))
            rounds.add(window)
            assert rounds.begun_number is None
            assert not rounds.matches_last and not rounds.repeats_last
        assert rounds.ended
