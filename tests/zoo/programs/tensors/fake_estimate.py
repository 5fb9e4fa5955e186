"""Estimates for a second, as memory planners do, on fake tensors only; then trains."""

import time

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

torch.manual_seed(0)
kinds = set()
deadline = time.monotonic() + 1.0
while time.monotonic() < deadline:
    with FakeTensorMode() as mode:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            loss = model(torch.empty(8, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kinds |= {
                type(loss).__name__,
                type(optimizer.state[model[0].weight]["momentum_buffer"]).__name__,
            }
weight = nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    (weight - 1).square().sum().backward()
    optimizer.step()
print(sorted(kinds), weight.tolist())
