"""There is no home folder, no HOME, and the user has no name."""

import os

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


home = os.environ.pop("HOME")
os.rmdir(home)
train()
print(os.path.exists(home), os.path.expanduser("~") != home, model.weight.tolist())
