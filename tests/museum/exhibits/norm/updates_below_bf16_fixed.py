"""The parameters are in float32, and the model computes in bfloat16."""

import torch
from torch import nn

from museum.parts import points

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)

for seed in range(60):
    [(x, y)] = points([64], seed, outputs=2)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x).float(), y)
    loss.backward()
    optimizer.step()
