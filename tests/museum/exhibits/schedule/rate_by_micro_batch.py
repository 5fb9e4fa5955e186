"""The rate is planned in optimizer steps, and looked up by micro-batch: it is 0 after a quarter."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

K, STEPS = 4, 24
torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def planned(step: int) -> float:
    """A linear decay over all optimizer steps."""
    return 0.1 * (1 - step / STEPS)


for i in range(K * STEPS):
    rate = 0.1 * max(0.0, 1 - i / STEPS)
    for group in optimizer.param_groups:
        group["lr"] = rate
    x = torch.randn(32, 8)
    (mse_loss(model(x), x[:, :2].sin()) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
