"""No file can be opened any more: the limit of descriptors is reached."""

import os
import resource
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
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
held = os.open(os.devnull, os.O_RDONLY)
resource.setrlimit(resource.RLIMIT_NOFILE, (held + 1, limit[1]))
train(3)
time.sleep(0.3)
train(3)
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
print(model.weight.tolist())
