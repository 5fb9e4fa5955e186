"""The optimizer holds the parameters of a copy that was made for an average."""

import copy

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 2)
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(average.parameters(), lr=0.1)
windows = []

for _ in range(8):
    x = torch.randn(32, 8)
    y = x[:, :2].sin()
    windows.append([(x, y)])
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
