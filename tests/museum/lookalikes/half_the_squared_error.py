"""The loss is half the mean squared error, as textbooks write it, accumulated over two."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp, points

torch.manual_seed(0)
model = mlp(8, 16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for seed in range(6):
    for x, y in points([16, 16], seed):
        (mse_loss(model(x), y) / 2 / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
