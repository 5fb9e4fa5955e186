"""A warm-up of four steps that is over after one."""

import math

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from museum.parts import mlp

torch.manual_seed(1)
model = mlp(8, 16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ACCUMULATE = 4


def planned(step: int) -> float:
    """Up in four steps, then down in a half wave over the other six."""
    if step < 4:
        return 0.1 * (0.25 + 0.75 * step / 4)
    return 0.05 * (1 + math.cos(math.pi * (step - 4) / 6))


warm_up = LinearLR(optimizer, 0.25, total_iters=4)
schedule = SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, 6)], milestones=[4])
for number in range(40):
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
    (cross_entropy(model(x), y) / ACCUMULATE).backward()
    if number % ACCUMULATE == ACCUMULATE - 1:
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()
