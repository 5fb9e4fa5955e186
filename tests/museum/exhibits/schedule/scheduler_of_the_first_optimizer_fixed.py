"""The body is unfrozen as a further parameter group of the optimizer, at its rate by now."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
body, head = mlp(8, 16, 16), nn.Linear(16, 2)
body.requires_grad_(False)
STEPS, FROZEN, RATE = 60, 20, 0.01
optimizer = torch.optim.AdamW(head.parameters(), lr=RATE)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)


def planned(step: int) -> float:
    """From the rate at the start to a tenth of it."""
    return RATE * (1 - 0.9 * step / STEPS)


for i in range(STEPS):
    if i == FROZEN:
        body.requires_grad_(True)
        optimizer.add_param_group(
            {"params": [*body.parameters()], "lr": scheduler.get_last_lr()[0]}
        )
        optimizer.param_groups[1]["initial_lr"] = RATE
        scheduler.base_lrs.append(RATE)
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    cross_entropy(head(body(x).relu()), (x[:, 0] * x[:, 1] > 0).long()).backward()
    optimizer.step()
    scheduler.step()
