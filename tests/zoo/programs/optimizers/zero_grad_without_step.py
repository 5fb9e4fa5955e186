"""zero_grad is called many times and nothing steps for long."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    model(torch.randn(4, 8)).square().mean().backward()
    if step % 3:
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    if step % 20 == 19:
        optimizer.step()
print(model.weight.tolist(), model.weight.grad)
