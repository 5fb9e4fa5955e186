"""SIGTERM is ignored, then restored to what it was."""

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


previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
train()
os.kill(os.getpid(), signal.SIGTERM)
train()
print(previous, signal.signal(signal.SIGTERM, previous), signal.getsignal(signal.SIGTERM))
print(model.weight.tolist())
