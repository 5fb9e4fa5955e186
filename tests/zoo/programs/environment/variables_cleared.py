"""All environment variables go while the program runs, and it changes its folder."""

import os
import time

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


train(3)
os.environ.clear()
os.chdir("/")
train(3)
time.sleep(0.3)
train(3)
print(dict(os.environ), os.getcwd(), model.weight.tolist())
