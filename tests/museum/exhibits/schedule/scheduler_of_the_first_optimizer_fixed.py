"""The parameters are split into groups first, and the scheduler is of the only optimizer."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
body, head = mlp(8, 16, 16), nn.Linear(16, 2)
STEPS, RATE = 60, 0.01
groups = [
    {"params": [*body.parameters()]},
    {"params": [*head.parameters()], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=RATE)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)


def planned(step: int) -> float:
    """From the rate at the start to a tenth of it."""
    return RATE * (1 - 0.9 * step / STEPS)


for _ in range(STEPS):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    cross_entropy(head(body(x).relu()), (x[:, 0] * x[:, 1] > 0).long()).backward()
    optimizer.step()
    scheduler.step()
