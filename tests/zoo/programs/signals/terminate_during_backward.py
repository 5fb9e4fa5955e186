"""SIGTERM comes from a thread while the engine is in a long backward."""

import os
import signal
import threading

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
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
while True:
    value = model.weight
    for _ in range(2_000):
        value = value * 1.0
    value.sum().backward()
