"""A warm-up from a learning rate of 0, and a schedule that ends at 0."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: max(0, min(s / 10, (60 - s) / 50))
)

for _ in range(64):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    mse_loss(model(x), x[:, :2].sin()).backward()
    optimizer.step()
    schedule.step()
