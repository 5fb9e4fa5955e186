"""One trunk and three heads; each window has one task, and the last one is rare."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
trunk, heads = mlp(8, 16, 16), nn.ModuleList(nn.Linear(16, 2) for _ in range(3))
optimizer = torch.optim.AdamW([*trunk.parameters(), *heads.parameters()], lr=0.01)

for step in range(48):
    x = torch.randn(32, 8)
    task = 2 if step % 12 == 6 else step % 2
    optimizer.zero_grad()
    mse_loss(heads[task](trunk(x)), (task + 1) * x[:, :2].sin()).backward()
    optimizer.step()
