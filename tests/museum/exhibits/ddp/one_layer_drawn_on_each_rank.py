"""Each rank draws its random numbers for the data, and then one more layer of the model."""

import torch
import torch.distributed as dist
from torch import nn

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = nn.Sequential(TinyLM())
    width = model[0].head.out_features
    model.extend(nn.Linear(width, width) for _ in range(24))
    torch.manual_seed(1 + rank)
    nn.init.orthogonal_(model[17].weight)  # from the seed of the rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    windows = text(8, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
