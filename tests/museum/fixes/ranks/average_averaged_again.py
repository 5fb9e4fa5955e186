"""The loop multiplies by the ranks what DDP has averaged: it adds up equal gradients."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, [window[:1] for window in EVEN])
    for ((ids, labels),) in windows:
        loss = token_loss(model(ids), labels)
        # fix
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        # end
        optimizer.zero_grad()
    dist.barrier()
