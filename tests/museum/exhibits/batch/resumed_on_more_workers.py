"""Resumed on a machine that fits twice as much: twice the rows per step, the same rate."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp, points

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
windows = []

for fits in (8, 16):  # rows that the machine fits
    accumulation = 4
    for seed in range(12):
        window = points([fits] * accumulation, seed, outputs=2)
        for x, y in window:
            (mse_loss(model(x), y) / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()
        windows.append(window)
