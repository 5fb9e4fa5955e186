"""Run with -I: PYTHON* variables are ignored, as with -E, and there is no user site."""

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
