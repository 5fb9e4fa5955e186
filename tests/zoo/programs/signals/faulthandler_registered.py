"""faulthandler writes the stack of the main thread on SIGUSR1 and on a timeout."""

import faulthandler
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


with open("stacks", "w+") as file:
    faulthandler.register(signal.SIGUSR1, file, all_threads=False)
    train()
    os.kill(os.getpid(), signal.SIGUSR1)
    file.seek(0)
    print(file.read())
print(faulthandler.is_enabled(), model.weight.tolist())
