"""The loop combines gradients, and the ranks begin with different weights."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(rank)
    model = TinyLM()
    # fix
    # end
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, EVEN)
    for window in windows:
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
