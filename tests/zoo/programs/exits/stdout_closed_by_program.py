"""Closes sys.stdout and sys.stderr at its end, having written its results to a duplicate."""

import os
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


results = os.fdopen(os.dup(1), "w")
sys.stdout.close()
sys.stderr.close()
train()
results.write(repr(model.weight.tolist()))
results.close()
