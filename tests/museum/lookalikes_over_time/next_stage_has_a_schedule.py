"""A second stage goes on with the optimizer of the first one, under a new schedule."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

STAGES = ((40, 0.01), (24, 0.002))  # steps, and the highest learning rate

torch.manual_seed(0)
model = mlp(8, 16, 2)
state = None

for steps, rate in STAGES:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    if state is not None:
        optimizer.load_state_dict(state)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = rate
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    for _ in range(steps):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        mse_loss(model(x), x[:, :2].sin()).backward()
        optimizer.step()
        schedule.step()
    state = optimizer.state_dict()
