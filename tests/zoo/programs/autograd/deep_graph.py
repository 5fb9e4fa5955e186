"""A graph of ten thousand nodes in a row."""

import torch
from torch import nn

weight = nn.Parameter(torch.full((4,), 0.5))
optimizer = torch.optim.SGD([weight], lr=1e-4)
for _ in range(3):
    optimizer.zero_grad()
    value = weight
    for _ in range(10_000):
        value = value * 1.0001
    value.sum().backward()
    optimizer.step()
print(weight.tolist())
