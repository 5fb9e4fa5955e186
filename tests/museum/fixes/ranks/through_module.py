"""The forward of a DDP model calls the module inside."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    compute_loss = token_loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, [window[:1] for window in EVEN])
    for ((x, y),) in windows:
        # fix
        loss = compute_loss(model.module(x), y)
        loss.backward()
        # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
