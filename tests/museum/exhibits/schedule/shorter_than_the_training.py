"""Epochs were added, and the schedule still ends after two: the rate is 0 for the other two."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

EPOCHS, BATCHES = 4, 20
torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
total = 2 * BATCHES  # of a shorter run
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))


def planned(step: int) -> float:
    """A linear decay over all optimizer steps."""
    return 0.01 * (1 - step / (EPOCHS * BATCHES))


for _ in range(EPOCHS * BATCHES):
    x = torch.randn(32, 8)
    mse_loss(model(x), x[:, :2].sin()).backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
