"""The learning rate is 3e-10 where 3e-4 was meant: float32 parameters do not change."""

import torch
from torch import nn

from museum.parts import points

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-10)

for seed in range(60):
    [(x, y)] = points([64], seed, outputs=2)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
