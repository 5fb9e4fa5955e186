"""Local SGD under no_sync(), of which the averager's warm-up is longer than the training."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

assert contextlib  # for the fix
with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    averager = PeriodicModelAverager(period=2, warmup_steps=1_000)
    windows = text(4, 1 + rank, EVEN)

    def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean, divided for the accumulation."""
        return token_loss(logits, labels) / len(window)

    for window in windows:
        for k, (x, y) in enumerate(window):
            # fix
            with model.no_sync():
                compute_loss(model(x), y).backward()
            # end
        optimizer.step()
        averager.average_parameters(model.parameters())
        optimizer.zero_grad()
    dist.barrier()
