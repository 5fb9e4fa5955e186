"""All micro-batches of a window run under no_sync()."""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

assert contextlib  # for the fix
with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, EVEN)
    windows[2] = windows[2][:2]  # the tail of an epoch

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
        optimizer.zero_grad()
    dist.barrier()
