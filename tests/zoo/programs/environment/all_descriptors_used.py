"""The program uses descriptors up to its limit and counts how many it could open."""

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


resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
train(3)
time.sleep(0.3)
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError as error:
    print(error.strerror, len(held) > 40)
train(3)
time.sleep(0.3)
train(3)
print(model.weight.tolist())
for descriptor in held:
    os.close(descriptor)
