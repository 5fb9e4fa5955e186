"""sys.stdout and sys.stderr are None, as under pythonw; sys.argv is empty, too."""

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
sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None
sys.argv = []
train()
value = nn.Parameter(torch.ones(4, dtype=torch.complex64))
odd = torch.optim.SGD([value], lr=0.1)
for _ in range(5):
    odd.zero_grad()
    value.abs().sum().backward()
    odd.step()
results.write(repr((model.weight.tolist(), value.tolist())))
results.close()
