"""The warm-up is stepped with the optimizer."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))


def planned(step: int) -> float:
    """A warm-up over 100 steps."""
    return 0.1 * min(1.0, step / 100)


for _epoch in range(2):
    for _ in range(50):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        mse_loss(model(x), x[:, :2].sin()).backward()
        optimizer.step()
        schedule.step()
