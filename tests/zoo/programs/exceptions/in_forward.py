"""Forward raises now and then, between backwards of one window; training goes on."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad()
    for micro in range(3):
        try:
            if (step + micro) % 5 == 0:
                raise ValueError("a bad sample")
            (model(torch.randn(4, 8)).square().mean() / 3).backward()
        except ValueError as error:
            print(step, micro, error)
    optimizer.step()
print(model.weight.tolist())
