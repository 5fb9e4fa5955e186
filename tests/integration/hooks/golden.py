"""A model of one weight, w * x in float64, small enough that a step is worked out on paper.

    python golden.py RANK STORE OUTPUT     # one of two ranks under DDP

The account itself stands in test_golden_account.py.
"""

from __future__ import annotations

import math
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from helpers.training import recording

Samples = tuple[list[float], list[float]]  # x, and the target

FIRST: Samples = ([1, 2, 1], [0, 0, 2])
SECOND: Samples = ([2], [1])
BROKEN: Samples = ([2], [math.inf])
OTHERS: list[Samples] = [([2, 1], [1, 1]), ([1, 1], [0, 0])]  # of the second rank

N = 4  # samples of a window, on either rank


def model() -> nn.Linear:
    """w = 1."""
    linear = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(linear.weight)
    return linear


def loss_of(module: nn.Module, samples: Samples) -> Tensor:
    """A sample's share of the mean over the window."""
    x, target = (torch.tensor(v, dtype=torch.float64).unsqueeze(1) for v in samples)
    return mse_loss(module(x), target, reduction="sum") / N


def on_one_rank() -> list[bytes]:
    """A step, a step that the scaler skips, and a step whose gradient is clipped."""
    net = model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for window, limit in (
            ([FIRST, SECOND], 100.0),
            ([FIRST, BROKEN], 100.0),
            ([FIRST, SECOND], 0.25),
        ):
            for samples in window:
                scaler.scale(loss_of(net, samples)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), limit)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
    return recorded.lines()


def on_two_ranks(rank: int) -> list[bytes]:
    """Two steps under DDP, synchronised by the last micro-batch, on the mean over both ranks."""
    net = DistributedDataParallel(model())
    window = OTHERS if rank else [FIRST, SECOND]
    with recording() as recorded:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for _ in range(2):
            with net.no_sync():
                loss_of(net, window[0]).backward()
            loss_of(net, window[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorded.lines()


def main(rank: int, store: str, output: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.save(on_two_ranks(rank), output)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
