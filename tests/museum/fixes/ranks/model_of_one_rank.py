"""Each rank steps on its own gradients, and then takes over the parameters of rank 0."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(10, 1 + rank, EVEN)
    for window in windows:
        for ids, labels in window:
            (token_loss(model(ids), labels) / len(window)).backward()
        # fix
        # end
        optimizer.step()
        optimizer.zero_grad()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
