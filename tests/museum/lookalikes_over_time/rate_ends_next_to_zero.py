"""A cosine schedule ends next to 0: the last steps change no parameter of float32."""

import torch
from torch import nn

from museum.parts import points

STEPS = 120

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS // 2, eta_min=1e-11)

for step in range(STEPS):
    [(x, y)] = points([64], step, outputs=2)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    if step < STEPS // 2:
        scheduler.step()
