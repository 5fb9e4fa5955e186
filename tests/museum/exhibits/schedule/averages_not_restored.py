"""Model and schedule are resumed from a checkpoint; the averages of the optimizer are not."""

from typing import Any

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

STEPS, SAVED = 60, 24  # of the whole training, and until it is interrupted
Parts = dict[str, Any]


def setup() -> Parts:
    model = mlp(8, 16, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2 * STEPS])
    return {"model": model, "optimizer": optimizer, "schedule": schedule}


def train(parts: Parts, steps: int) -> None:
    for _ in range(steps):
        x = torch.randn(32, 8)
        parts["optimizer"].zero_grad()
        mse_loss(parts["model"](x), x[:, :2].sin()).backward()
        parts["optimizer"].step()
        parts["schedule"].step()


torch.manual_seed(0)
first = setup()
train(first, SAVED)
checkpoint = {name: part.state_dict() for name, part in first.items()}

resumed = setup()
for name in ("model", "schedule"):
    resumed[name].load_state_dict(checkpoint[name])
train(resumed, STEPS - SAVED)
