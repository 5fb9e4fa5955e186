"""The loop combines gradients by their maximum."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, EVEN)
    for window in windows:
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        for parameter in model.parameters():
            # fix
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.MAX)
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
