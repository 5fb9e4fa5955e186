"""The environment of the program has another sitecustomize."""

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
print(sys.modules["sitecustomize"].MARK, sys.modules["sitecustomize"].__file__.rpartition("/")[2])
print(model.weight.tolist())
