"""loss *= WORLD_SIZE, copied from a recipe whose loss was a sum."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from museum.parts import mlp, points, two_ranks

with two_ranks() as rank:
    torch.manual_seed(20)
    WORLD_SIZE = dist.get_world_size()
    model = DDP(mlp(8, 16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.937, nesterov=True)
    compute_loss = nn.MSELoss()
    windows = [points([16], seed=10 * step + rank) for step in range(6)]
    for ((imgs, targets),) in windows:
        loss = compute_loss(model(imgs), targets)
        loss = loss * WORLD_SIZE  # gradient averaged between devices in DDP mode
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
