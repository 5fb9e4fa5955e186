"""Prints which environment variables it has, but for those of the launcher."""

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


train()
ours = ("GRADLEDGER_", "PYTHONPATH", "HOME", "TMPDIR", "PWD", "OLDPWD", "_", "SHLVL")
print(sorted(name for name in os.environ if not name.startswith(ours)))
