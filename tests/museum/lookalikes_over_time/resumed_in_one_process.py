"""The training stops after a third of its schedule, and a new optimizer goes on from its state."""

from typing import Any

import torch

from museum.parts import mlp, points

EPOCHS, BATCHES, K = 6, 9, 3
STEPS = EPOCHS * BATCHES // K


def setup() -> tuple[Any, Any, Any]:
    model = mlp(8, 16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def train(model: Any, optimizer: Any, scheduler: Any, epochs: range) -> None:
    for epoch in epochs:
        batches = points([4] * BATCHES, seed=epoch)
        for number, (x, y) in enumerate(batches, 1):
            (torch.nn.functional.mse_loss(model(x), y) / K).backward()
            if number % K == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


torch.manual_seed(0)
first = setup()
train(*first, range(EPOCHS // 3))
states = [each.state_dict() for each in first]
second = setup()
for each, state in zip(second, states, strict=True):
    each.load_state_dict(state)
train(*second, range(EPOCHS // 3, EPOCHS))
