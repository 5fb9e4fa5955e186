"""Run with -X dev -W error: debug allocators, faulthandler, and each warning is an error."""

import sys
import warnings

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(steps=10):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


train()
print(
    sys.flags,
    warnings.filters[0][0],
    sys.path[0] == __file__.rpartition("/")[0],
    model.weight.tolist(),
)
