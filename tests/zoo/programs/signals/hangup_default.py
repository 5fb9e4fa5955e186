"""SIGHUP without a handler: the process dies at once."""

import os
import signal

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
print(model.weight.tolist(), flush=True)
os.kill(os.getpid(), signal.SIGHUP)
train(1_000_000)
