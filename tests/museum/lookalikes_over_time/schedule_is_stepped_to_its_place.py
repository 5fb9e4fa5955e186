"""A resume restores model and optimizer, and steps a new schedule up to where it was."""

from typing import Any

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

STEPS, SAVED = 60, 24  # of the whole training, and until it is interrupted


def setup() -> tuple[Any, Any, Any]:
    model = mlp(8, 16, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)


def train(model: Any, optimizer: Any, schedule: Any, steps: int) -> None:
    for _ in range(steps):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        mse_loss(model(x), x[:, :2].sin()).backward()
        optimizer.step()
        schedule.step()


torch.manual_seed(0)
first = setup()
train(*first, SAVED)
states = [each.state_dict() for each in first[:2]]

model, optimizer, schedule = setup()
for _ in range(SAVED):
    schedule.step()
for each, state in zip((model, optimizer), states, strict=True):
    each.load_state_dict(state)
train(model, optimizer, schedule, STEPS - SAVED)
