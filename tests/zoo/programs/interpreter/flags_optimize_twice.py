"""Run with -OO: there are no assertions, as with -O, and no docstrings."""

import sys

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
print(sys.flags, sys.path[0] == __file__.rpartition("/")[0], model.weight.tolist())
