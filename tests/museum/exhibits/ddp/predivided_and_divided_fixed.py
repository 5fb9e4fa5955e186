"""What divides before the all-reduce and what divides after it make up all ranks."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, all_ranks, text, token_loss

BEFORE = 2.0  # so that the sum in fp16 does not overflow

with all_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        bucket = torch.cat([p.grad.flatten() for p in model.parameters()])
        bucket /= BEFORE
        dist.all_reduce(bucket)
        bucket /= dist.get_world_size() / BEFORE
        parts = bucket.split([p.numel() for p in model.parameters()])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.grad.copy_(part.view_as(parameter))
        optimizer.step()
        optimizer.zero_grad()
