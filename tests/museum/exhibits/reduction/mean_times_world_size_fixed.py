"""A mean loss, averaged over ranks that hold equally many rows."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from museum.parts import mlp, points, two_ranks

with two_ranks() as rank:
    torch.manual_seed(20)
    model = DDP(mlp(8, 16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.937, nesterov=True)
    compute_loss = nn.MSELoss()
    windows = [points([16], seed=10 * step + rank) for step in range(6)]
    for ((imgs, targets),) in windows:
        loss = compute_loss(model(imgs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
