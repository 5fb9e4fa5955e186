"""An optimizer raises in step, before and after it has changed parameters."""

import torch
from torch import nn


class Fragile(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls % 4 == 2:
            raise RuntimeError("before the update")
        super().step(closure)
        if self.calls % 4 == 3:
            raise RuntimeError("after the update")


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = Fragile(model.parameters(), lr=0.05)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    try:
        optimizer.step()
    except RuntimeError as error:
        print(error)
print(model.weight.tolist())
