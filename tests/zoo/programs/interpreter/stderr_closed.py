"""Started with standard error closed; files that are opened get its number."""

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


with open("log", "w") as log:
    sys.argv = []
    train()
    odd = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    torch.optim.SGD([odd], lr=0.1).step()
    log.write("only this\n")
with open("log") as log:
    print(repr(log.read()), model.weight.tolist())
