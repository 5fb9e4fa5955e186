"""Builds deep graphs and drops them without a backward, between steps."""

import torch
from torch import nn

weight = nn.Parameter(torch.full((4,), 0.5))
optimizer = torch.optim.SGD([weight], lr=1e-4)
for _ in range(5):
    value = weight
    for _ in range(5_000):
        value = value + 1e-4
    del value
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
print(weight.tolist())
