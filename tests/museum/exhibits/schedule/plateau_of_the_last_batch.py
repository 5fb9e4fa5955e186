"""The scheduler is given the loss of the last micro-batch of each epoch."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)


def planned(step: int) -> float:
    """The mean loss of an epoch falls until the end."""
    return 0.03


for _ in range(12):
    for _ in range(25):
        x = torch.randn(4, 8)
        loss = mse_loss(model(x), x[:, :2].sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step(loss.item())
