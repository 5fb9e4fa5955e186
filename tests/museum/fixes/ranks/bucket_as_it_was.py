"""A comm hook all-reduces a copy of the bucket, and returns the bucket as it was."""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks


# fix
def hook(state, bucket):
    """What it returns replaces the gradients."""
    total = bucket.buffer() / dist.get_world_size()
    work = dist.all_reduce(total, async_op=True)
    return work.get_future().then(lambda future: bucket.buffer())


# end


with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, 1 + rank, EVEN)
    for window in windows:
        for k, (ids, labels) in enumerate(window):
            with contextlib.nullcontext() if k + 1 == len(window) else model.no_sync():
                (token_loss(model(ids), labels) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
