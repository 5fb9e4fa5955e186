"""A handler is installed only where nobody has one, as Lightning does; it saves and exits."""

import os
import signal
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


def save(number, frame):
    torch.save(model.state_dict(), "checkpoint.pt")
    print("saved", os.path.getsize("checkpoint.pt") > 0, flush=True)
    sys.exit(128 + number)


train()
if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
    signal.signal(signal.SIGTERM, save)
os.kill(os.getpid(), signal.SIGTERM)
train(1_000_000)
