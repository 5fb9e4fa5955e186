"""The warm-up is a tenth of the training."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

STEPS = 240


def linear(
    optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def planned(step: int) -> float:
    """A warm-up of a tenth, then down to 0."""
    warmup = STEPS // 10
    return 0.1 * min(step / warmup, (STEPS - step) / (STEPS - warmup))


torch.manual_seed(0)
model = mlp(8, 16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = linear(optimizer, STEPS // 10, STEPS)

for _ in range(STEPS):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    mse_loss(model(x), x[:, :2].sin()).backward()
    optimizer.step()
    schedule.step()
