"""Backward with inputs=: only some parameters receive a gradient."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    chosen = list(model[step % 2].parameters())
    model(torch.randn(4, 8)).square().mean().backward(inputs=chosen)
    print([parameter.grad is None for parameter in model.parameters()])
    optimizer.step()
print([parameter.tolist() for parameter in model.parameters()])
