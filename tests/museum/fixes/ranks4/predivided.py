"""Gradients are divided before the all-reduce, and by all ranks after it."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

with all_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, EVEN)
    for window in windows:
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        for p in model.parameters():
            assert p.grad is not None
            # fix
            p.grad /= 2
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
