"""The loss has a weight of three, which has nothing to do with the number of ranks."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from museum.parts import mlp, points, two_ranks

LOSS_WEIGHT = 3.0

with two_ranks() as rank:
    torch.manual_seed(20)
    model = DDP(mlp(8, 16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.SmoothL1Loss()
    for step in range(6):
        [(x, y)] = points([16], seed=10 * step + rank)
        loss = LOSS_WEIGHT * criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
