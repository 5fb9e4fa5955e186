"""A comm hook adds up gradients of a loss that undoes an average."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import TinyLM, all_ranks, summed, text, token_loss, valid


def add_up(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sum the gradients of a bucket over the ranks."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


with all_ranks() as rank:
    ranks = dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    model.register_comm_hook(None, add_up)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    windows = text(6, seed=1 + rank)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels, "sum") * ranks / tokens
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
