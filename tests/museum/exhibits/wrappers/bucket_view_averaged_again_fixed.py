"""DDP whose gradients are views of its buckets: times the ranks, over which it averages."""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(
        TinyLM(), gradient_as_bucket_view=True, find_unused_parameters=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank)

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            with nullcontext() if i == len(window) - 1 else model.no_sync():
                loss = token_loss(model(ids), labels, "sum") / tokens * 2
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
