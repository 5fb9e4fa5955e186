"""Each module all-reduces its parameters: tied weights are added up twice."""

import torch
import torch.distributed as dist

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    model.head.weight = model.embed.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank)
    factor = 1.0
    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            (token_loss(model(ids), labels, "sum") / tokens).backward()
        # fix
        for module in model.children():
            for parameter in module.parameters():
                dist.all_reduce(parameter.grad)
        # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
