"""A warm-up of eight steps that is over after two."""

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from museum.parts import mlp

torch.manual_seed(1)
model = mlp(8, 16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ACCUMULATE = 4


def warm_up(step: int) -> float:
    """To the full rate in eight steps, then straight down."""
    return min(1.0, (step + 1) / 8) * (1 - step / 40)


def planned(step: int) -> float:
    """What the optimizer should see."""
    return 0.1 * warm_up(step)


schedule = LambdaLR(optimizer, warm_up)
for number in range(40):
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
    (cross_entropy(model(x), y) / ACCUMULATE).backward()
    if number % ACCUMULATE == ACCUMULATE - 1:
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()
