"""A penalty on the weights, which changes, and a constant beside it, which has no gradient."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for _ in range(24):
    x = torch.randn(32, 8)
    penalty = sum(p.square().sum() for p in model.parameters())
    optimizer.zero_grad()
    (mse_loss(model(x), x[:, :2].sin()) + 0.01 * penalty + 0.5).backward()
    optimizer.step()
