"""No file may grow beyond a few bytes."""

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


results = model.weight
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
train()
time.sleep(0.3)
train()
print([round(value, 6) for value in model.weight[0].tolist()])
