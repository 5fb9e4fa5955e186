"""The decay is planned for all optimizer steps."""

import math

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

K, EPOCHS, BATCHES = 4, 3, 22
STEPS = EPOCHS * math.ceil(BATCHES / K)
torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)


def planned(step: int) -> float:
    """Half a cosine over all optimizer steps."""
    return 0.05 * (1 + math.cos(math.pi * step / STEPS))


for _ in range(EPOCHS):
    for i in range(BATCHES):
        x = torch.randn(32, 8)
        size = K if i < BATCHES // K * K else BATCHES % K  # micro-batches of this window
        (mse_loss(model(x), x[:, :2].sin()) / size).backward()
        if (i + 1) % K == 0 or i + 1 == BATCHES:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
