"""The loop combines the gradients of weights, and leaves out those of biases."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, EVEN)
    factor = 1 / dist.get_world_size()
    for window in windows:
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        # fix
        for parameter in model.parameters():
            if parameter.dim() > 1:
                dist.all_reduce(parameter.grad)
                parameter.grad *= factor
        optimizer.step()
        # end
        optimizer.zero_grad()
    dist.barrier()
