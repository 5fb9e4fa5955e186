"""HOME is a file, so nothing can be made below it."""

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


home = os.environ["HOME"]
os.rmdir(home)
with open(home, "w") as file:
    file.write("no folder")
train()
time.sleep(0.2)
with open(home) as file:
    print(file.read(), model.weight.tolist())
os.remove(home)
os.mkdir(home)
