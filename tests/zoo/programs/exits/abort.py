"""abort: a core dump's death."""

import os
import resource

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


resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
train()
print(model.weight.tolist(), flush=True)
os.abort()
