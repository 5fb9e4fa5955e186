"""The all-reduce by hand runs after the last backward."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
            if i + 1 == len(window):
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
