"""Nested tensors as inputs, and a masked loss."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(6):
    optimizer.zero_grad()
    ragged = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.jagged)
    model(ragged).values().square().mean().backward()
    optimizer.step()
print(model.weight.tolist())
