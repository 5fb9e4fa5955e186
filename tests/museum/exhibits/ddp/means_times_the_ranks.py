"""Means over K micro-batches, multiplied by the number of ranks as a global sum would be."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

K = 2

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    windows = [window[:K] for window in text(6, seed=1 + rank, lengths=EVEN)]

    for window in windows:
        for number, (ids, labels) in enumerate(window, 1):
            model.require_backward_grad_sync = number == K
            loss = token_loss(model(ids), labels) / K
            (loss * dist.get_world_size()).backward()
        optimizer.step()
        optimizer.zero_grad()
