"""Crops of different area, batched by memory: MSE means are averaged over the batches."""

import torch
from torch import nn

from museum.parts import mlp, points

torch.manual_seed(5)
model = mlp(8, 16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
accumulate_grad_batches = 3
windows = [points((16, 5, 9), seed=1), points((3, 12, 7), seed=2), points((10, 2, 20), seed=3)]

for _ in range(2):
    for batches in windows:
        for x, y in batches:
            loss = criterion(model(x), y)
            (loss / accumulate_grad_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
windows = windows * 2
