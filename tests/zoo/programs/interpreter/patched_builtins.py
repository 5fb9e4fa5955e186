"""open, print and print's stream are replaced while training runs."""

import builtins
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


real_open, real_print = builtins.open, builtins.print
opened = []


def refuse(*args, **kwargs):
    opened.append(args[:1])
    raise PermissionError("no files here")


train(3)
builtins.open = builtins.print = refuse
train(3)
time.sleep(0.3)
train(3)
builtins.open, builtins.print = real_open, real_print
print(opened, model.weight.tolist())
