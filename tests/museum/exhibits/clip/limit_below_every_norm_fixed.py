"""Clips above the usual norm: only what leaves the range is scaled down."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp, points

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
max_norm = 10.0

for seed in range(240):
    [(x, y)] = points([16], seed, outputs=2)
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
